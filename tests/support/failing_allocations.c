/* Let one allocation of a compiled kernel fail: linked into the kernels that tools/checked_kernels.py builds, where the
 * linker directs the kernel's own calls of these functions here (--wrap). Nothing else in the process is touched.
 */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdatomic.h>
#include <stdarg.h>

static atomic_long left = -1; /* allocations up to the one that fails; negative: none does */

/* Let the nth allocation from now on fail, from 1; 0: none. Returns how many were left. */
long fail_allocation(long nth) {
    return atomic_exchange(&left, nth > 0 ? nth : -1);
}

static int fails(void) {
    long now = atomic_load(&left);
    while (now > 0 && !atomic_compare_exchange_weak(&left, &now, now - 1)) {
    }
    return now == 1;
}

#define OF_BYTES(name, parameters, arguments)                                                               \
    void *__real_##name parameters;                                                                         \
    void *__wrap_##name parameters;                                                                         \
    void *__wrap_##name parameters {                                                                        \
        return fails() ? NULL : __real_##name arguments;                                                    \
    }
#define OF_OBJECTS(name, parameters, arguments)                                                             \
    PyObject *__real_##name parameters;                                                                     \
    PyObject *__wrap_##name parameters;                                                                     \
    PyObject *__wrap_##name parameters {                                                                    \
        return fails() ? PyErr_NoMemory() : __real_##name arguments;                                        \
    }

OF_BYTES(malloc, (size_t size), (size))
OF_BYTES(calloc, (size_t count, size_t size), (count, size))
OF_BYTES(realloc, (void *bytes, size_t size), (bytes, size))
OF_BYTES(PyMem_Malloc, (size_t size), (size))
OF_BYTES(PyMem_Calloc, (size_t count, size_t size), (count, size))
OF_OBJECTS(PyType_GenericAlloc, (PyTypeObject *type, Py_ssize_t items), (type, items))
OF_OBJECTS(PyList_New, (Py_ssize_t size), (size))
OF_OBJECTS(PyList_AsTuple, (PyObject *list), (list))
OF_OBJECTS(PyBytes_FromStringAndSize, (const char *bytes, Py_ssize_t size), (bytes, size))
OF_OBJECTS(PyUnicode_FromString, (const char *text), (text))
OF_OBJECTS(PyLong_FromLongLong, (long long value), (value))
OF_OBJECTS(PyLong_FromSsize_t, (Py_ssize_t value), (value))
OF_OBJECTS(PyStructSequence_New, (PyTypeObject *type), (type))
OF_OBJECTS(PyCapsule_New, (void *pointer, const char *name, PyCapsule_Destructor destructor), (pointer, name, destructor))

PyObject *__wrap_Py_BuildValue(const char *format, ...);
PyObject *__wrap_Py_BuildValue(const char *format, ...) {
    va_list values;
    va_start(values, format);
    PyObject *result = Py_VaBuildValue(format, values); /* first: objects of the format N are its to release */
    va_end(values);
    if (result != NULL && fails()) {
        Py_DECREF(result);
        return PyErr_NoMemory();
    }
    return result;
}
