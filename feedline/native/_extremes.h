/* The least and the greatest value of columns: one pass over each, where numpy makes two. */

#ifndef FEEDLINE_EXTREMES_H
#define FEEDLINE_EXTREMES_H

#include "_fast.h"

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

/* The two of floats: both NaN where one is. */
static void extremes_of_keys(const int64_t keys[2], double found[2]) {
    found[0] = float_of(keys[0]);
    found[1] = float_of(keys[1]);
    if (isnan(found[0]) || isnan(found[1]))
        found[0] = found[1] = isnan(found[0]) ? found[0] : found[1];
}

/* extremes(arrays, out): of int64, into int64, or of float32, into float64: two for each. */
static PyObject *extremes(PyObject *module, PyObject *args) {
    PyObject *arrays, *out, *result = NULL;
    Buffers buffers;
    Py_ssize_t size = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &arrays, &out))
        return NULL;
    const Py_ssize_t count = PyTuple_Size(arrays);
    if (buffers_open(&buffers, count + 1) != 0)
        return NULL;
    for (Py_ssize_t index = 0; index < count; index++) {
        const Py_buffer *column = buffers_add(&buffers, PyTuple_GetItem(arrays, index), 0);
        if (column == NULL)
            goto done;
        if ((column->itemsize != 8 && column->itemsize != 4) || column->len == 0
            || (size != 0 && column->itemsize != size)) {
            PyErr_SetString(PyExc_ValueError, "arrays have no values, or are not all of int64 or all of float32");
            goto done;
        }
        size = column->itemsize;
    }
    const Py_buffer *to = buffers_add(&buffers, out, 1);
    if (to == NULL)
        goto done;
    if (to->len != 16 * count) {
        too_small("the array of extremes", to->len, 16 * count);
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t index = 0; index < count; index++) {
        int64_t pair[2];
        extremes_find(&buffers.views[index], &pair[0], &pair[1]);
        if (size == 8)
            memcpy((int64_t *)to->buf + 2 * index, pair, sizeof(pair));
        else
            extremes_of_keys(pair, (double *)to->buf + 2 * index);
    }
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    buffers_close(&buffers);
    return result;
}

#endif
