/* The least and the greatest value of columns: one pass over each, where numpy makes two. */

#ifndef FEEDLINE_EXTREMES_H
#define FEEDLINE_EXTREMES_H

#include "_fast.h"
#include "_tuples.h"

#define EXTREMES(name, type, key)                                                                           \
    FAST_WIDE static void name(const type *values, Py_ssize_t count, type *least, type *greatest) {         \
        type low = key(values[0]), high = low;                                                              \
        for (Py_ssize_t row = 1; row < count; row++) {                                                      \
            const type value = key(values[row]);                                                            \
            low = value < low ? value : low;                                                                \
            high = value > high ? value : high;                                                             \
        }                                                                                                   \
        *least = low;                                                                                       \
        *greatest = high;                                                                                   \
    }
#define ITSELF(value) (value)
/* A float's bits as an integer of the same order, in which NaN lies beyond infinity; and back. */
#define ORDERED(bits) ((bits) ^ ((bits) >> 31 & INT32_MAX))

EXTREMES(extremes_of_integers, int64_t, ITSELF)
EXTREMES(extremes_of_floats, int32_t, ORDERED)

static void extremes_find(const Py_buffer *column, int64_t *low, int64_t *high) {
    if (column->itemsize == 8) {
        extremes_of_integers(column->buf, column->len / 8, low, high);
    } else {
        int32_t least, greatest;
        extremes_of_floats(column->buf, column->len / 4, &least, &greatest);
        *low = least;
        *high = greatest;
    }
}

static double float_of(int64_t key) {
    const int32_t place = (int32_t)key, bits = ORDERED(place);
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* The two as Python has them: both NaN where one is. */
static PyObject *extremes_pair(Py_ssize_t itemsize, int64_t low, int64_t high) {
    if (itemsize == 8)
        return Py_BuildValue("(LL)", (long long)low, (long long)high);
    const double least = float_of(low), greatest = float_of(high);
    return isnan(least) ? Py_BuildValue("(dd)", least, least)
           : isnan(greatest) ? Py_BuildValue("(dd)", greatest, greatest) : Py_BuildValue("(dd)", least, greatest);
}

/* extremes(arrays): of int64 and float32. */
static PyObject *extremes(PyObject *module, PyObject *args) {
    PyObject *arrays, *result = NULL;
    Buffers buffers;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &arrays))
        return NULL;
    const Py_ssize_t count = PyTuple_Size(arrays);
    if (buffers_open(&buffers, count) != 0)
        return NULL;
    int64_t *found = PyMem_Calloc(2 * (size_t)count + 1, sizeof(int64_t));
    if (found == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        const Py_buffer *column = buffers_add(&buffers, PyTuple_GetItem(arrays, index), 0);
        if (column == NULL)
            goto done;
        if ((column->itemsize != 8 && column->itemsize != 4) || column->len == 0) {
            PyErr_SetString(PyExc_ValueError, "an array has no values, or is of neither int64 nor float32");
            goto done;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t index = 0; index < count; index++)
        extremes_find(&buffers.views[index], &found[2 * index], &found[2 * index + 1]);
    Py_END_ALLOW_THREADS
    result = PyList_New(count);
    for (Py_ssize_t index = 0; result != NULL && index < count; index++) {
        PyObject *pair = extremes_pair(buffers.views[index].itemsize, found[2 * index], found[2 * index + 1]);
        if (pair == NULL || PyList_SetItem(result, index, pair) != 0)
            Py_CLEAR(result);
    }
done:
    PyMem_Free(found);
    buffers_close(&buffers);
    return as_tuple(result);
}

#endif
