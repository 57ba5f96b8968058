/* A libFuzzer program whose target is a Python function: `tools/fuzz.py` builds and runs it.
 *
 * FUZZ_PYTHON: the interpreter whose packages are imported; FUZZ_TARGET: a name in `fuzz_targets.TARGETS`. What the
 * function raises ends the program, as a crash in a kernel does, and libFuzzer keeps the input.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static PyObject *target;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void stop(void) {
    PyErr_Print();
    abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    if (PyStatus_Exception(PyConfig_SetBytesString(&config, &config.program_name, getenv("FUZZ_PYTHON")))
        || PyStatus_Exception(Py_InitializeFromConfig(&config))) {
        fprintf(stderr, "the interpreter does not start\n");
        abort();
    }
    PyConfig_Clear(&config);
    PyObject *module = PyImport_ImportModule("fuzz_targets");
    PyObject *targets = module == NULL ? NULL : PyObject_GetAttrString(module, "TARGETS");
    if (targets == NULL || (target = PyDict_GetItemString(targets, getenv("FUZZ_TARGET"))) == NULL)
        stop();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    PyObject *done = PyObject_CallFunction(target, "y#", (const char *)data, (Py_ssize_t)size);
    if (done == NULL)
        stop();
    Py_DECREF(done);
    return 0;
}
