/* Codes into tables of values: counted, searched, and gathered to the values that they stand for.
 *
 * Part of _rows.c. Codes are checked as they are gathered: nothing is read outside of a table.
 */

#ifndef FEEDLINE_CODES_H
#define FEEDLINE_CODES_H

/* Codes into a table: numbers of 16 or 32 bits. */
typedef struct {
    const void *numbers;
    Py_ssize_t count;
    int narrow; /* of 16 bits */
} Codes;

static int codes_open(Codes *codes, Buffers *buffers, PyObject *object) {
    Py_buffer *view = buffers_add(buffers, object, 0);
    if (view == NULL)
        return -1;
    if (view->itemsize != 2 && view->itemsize != 4) {
        PyErr_Format(PyExc_ValueError, "a code has a wrong size: got %zd bytes, expected 2 or 4", view->itemsize);
        return -1;
    }
    codes->numbers = view->buf;
    codes->narrow = view->itemsize == 2;
    codes->count = view->len / view->itemsize;
    return 0;
}

#define COUNT_CODES(code_type)                                                                              \
    if (marks)                                                                                              \
        for (; row < codes.count && ((const code_type *)codes.numbers)[row] < entries; row++)               \
            ((char *)to->buf)[((const code_type *)codes.numbers)[row]] = 1;                                 \
    else                                                                                                    \
        for (; row < codes.count && ((const code_type *)codes.numbers)[row] < entries; row++)               \
            ((int64_t *)to->buf)[((const code_type *)codes.numbers)[row]]++;

/* count_codes(codes, counts): how often each code occurs, as int64; or, as bytes, whether it does. */
static PyObject *count_codes(PyObject *module, PyObject *args) {
    PyObject *object, *counts;
    Buffers buffers;
    Py_buffer *to;
    Codes codes;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &object, &counts))
        return NULL;
    if (buffers_open(&buffers, 2) != 0)
        return NULL;
    if (codes_open(&codes, &buffers, object) != 0 || (to = buffers_add(&buffers, counts, 1)) == NULL) {
        buffers_close(&buffers);
        return NULL;
    }
    const int marks = to->itemsize == 1;
    const uint64_t entries = (uint64_t)to->len / (marks ? 1 : sizeof(int64_t));
    Py_ssize_t row = 0;
    Py_BEGIN_ALLOW_THREADS
    if (codes.narrow) {
        COUNT_CODES(uint16_t)
    } else {
        COUNT_CODES(uint32_t)
    }
    Py_END_ALLOW_THREADS
    buffers_close(&buffers);
    if (row < codes.count) {
        PyErr_Format(PyExc_ValueError, "a code is out of range: got that of row %zd", row);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Whether a code occurs: many are compared at once, and all that follow where it was found are spared. */
#define HAS_CODE(code_type)                                                                                 \
    for (Py_ssize_t start = 0; start < codes->count && !found; start += 1024) {                             \
        const Py_ssize_t stop = start + 1024 < codes->count ? start + 1024 : codes->count;                  \
        for (Py_ssize_t row = start; row < stop; row++)                                                     \
            found |= ((const code_type *)codes->numbers)[row] == (code_type)code;                           \
    }

static int has(const Codes *codes, uint32_t code) {
    int found = 0;
    if (codes->narrow && code > UINT16_MAX)
        return 0;
    if (codes->narrow) {
        HAS_CODE(uint16_t)
    } else {
        HAS_CODE(uint32_t)
    }
    return found;
}

/* has_code(codes, code): whether it occurs. */
static PyObject *has_code(PyObject *module, PyObject *args) {
    PyObject *object;
    unsigned int code;
    Buffers buffers;
    Codes codes;
    int found = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OI", &object, &code))
        return NULL;
    if (buffers_open(&buffers, 1) != 0)
        return NULL;
    const int failed = codes_open(&codes, &buffers, object) != 0;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        found = has(&codes, code);
        Py_END_ALLOW_THREADS
    }
    buffers_close(&buffers);
    return failed ? NULL : PyBool_FromLong(found);
}

/* A column's target, and the values that its codes stand for: of the target's size, or int32 of int64. `order`, if any:
 * the row whose value comes first, second and so on. */
typedef struct {
    char *target;
    Py_ssize_t step, size;
    const void *table;
    int narrow;
    Codes codes;
    uint64_t entries;
    int64_t *extremes; /* of int64 values, or NULL */
    const uint32_t *order;
} Coded;

#define GATHER_CODES(type, stored, code_type, keep)                                                         \
    {                                                                                                       \
        const stored *table = column->table;                                                                \
        const code_type *codes = column->codes.numbers;                                                     \
        type *target = (type *)column->target;                                                              \
        if (column->order == NULL) {                                                                        \
            for (; row < count && codes[row] < entries; row++) {                                            \
                const type value = (type)table[codes[row]];                                                 \
                target[row * step] = value;                                                                 \
                keep                                                                                        \
            }                                                                                               \
        } else {                                                                                            \
            for (; row < count; row++) {                                                                    \
                const uint32_t at = column->order[row];                                                     \
                if (at >= count || codes[at] >= entries)                                                    \
                    break;                                                                                  \
                const type value = (type)table[codes[at]];                                                  \
                target[row * step] = value;                                                                 \
                keep                                                                                        \
            }                                                                                               \
        }                                                                                                   \
    }                                                                                                       \
    break;
#define KEEP_EXTREMES                                                                                       \
    low = value < low ? value : low;                                                                        \
    high = value > high ? value : high;

/* Returns whether all codes, and rows, are in range. */
static int gather_coded(const Coded *column) {
    const Py_ssize_t step = column->step, count = column->codes.count;
    const uint64_t entries = column->entries;
    Py_ssize_t row = 0;
    int64_t low = INT64_MAX, high = INT64_MIN;
    const int kind = column->size == 4 ? 0 : 1 + 2 * column->narrow + (column->extremes != NULL);
    switch (2 * kind + column->codes.narrow) {
    case 0:
        GATHER_CODES(uint32_t, uint32_t, uint32_t, )
    case 1:
        GATHER_CODES(uint32_t, uint32_t, uint16_t, )
    case 2:
        GATHER_CODES(uint64_t, uint64_t, uint32_t, )
    case 3:
        GATHER_CODES(uint64_t, uint64_t, uint16_t, )
    case 4:
        GATHER_CODES(int64_t, int64_t, uint32_t, KEEP_EXTREMES)
    case 5:
        GATHER_CODES(int64_t, int64_t, uint16_t, KEEP_EXTREMES)
    case 6:
        GATHER_CODES(int64_t, int32_t, uint32_t, )
    case 7:
        GATHER_CODES(int64_t, int32_t, uint16_t, )
    case 8:
        GATHER_CODES(int64_t, int32_t, uint32_t, KEEP_EXTREMES)
    case 9:
        GATHER_CODES(int64_t, int32_t, uint16_t, KEEP_EXTREMES)
    }
    if (column->extremes != NULL) {
        column->extremes[0] = low;
        column->extremes[1] = high;
    }
    return row == count;
}

/* Set how values are stored: of the target's size, or int32 of int64. Returns whether they are. */
static int table_open(Coded *column, const Py_buffer *table, Py_ssize_t size) {
    column->size = size;
    column->narrow = table->itemsize != size;
    column->table = table->buf;
    column->entries = table->itemsize > 0 ? (uint64_t)(table->len / table->itemsize) : 0;
    return (size == 4 || size == 8) && (!column->narrow || (table->itemsize == 4 && size == 8));
}

/* Read the arguments of a column. */
static int coded_open(Coded *column, Buffers *buffers, PyObject *arguments) {
    PyObject *target, *table, *codes, *extremes;
    Py_buffer *to, *from, *bounds = NULL;
    Py_ssize_t first;
    if (!PyArg_ParseTuple(arguments, "OnnOOO", &target, &first, &column->step, &table, &codes, &extremes))
        return -1;
    if ((to = buffers_add(buffers, target, 1)) == NULL || (from = buffers_add(buffers, table, 0)) == NULL
        || codes_open(&column->codes, buffers, codes) != 0
        || (extremes != Py_None && (bounds = buffers_add(buffers, extremes, 1)) == NULL))
        return -1;
    const Py_ssize_t count = column->codes.count, room = to->itemsize > 0 ? to->len / to->itemsize : 0;
    if (!table_open(column, from, to->itemsize) || first < 0 || column->step < 1
        || (count > 0 && (first >= room || count - 1 > (room - 1 - first) / column->step))
        || (bounds != NULL && (column->size != 8 || bounds->len != 2 * (Py_ssize_t)sizeof(int64_t)))) {
        PyErr_SetString(PyExc_ValueError, "a target is too small for its codes, or its values have another size");
        return -1;
    }
    column->target = (char *)to->buf + first * column->size;
    column->extremes = bounds == NULL ? NULL : bounds->buf;
    return 0;
}

static PyObject *gather_codes(PyObject *module, PyObject *args) {
    PyObject *columns, *order;
    Buffers buffers;
    Py_buffer *places = NULL;
    int valid = 1;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &columns, &order))
        return NULL;
    const Py_ssize_t count = PyList_Size(columns);
    if (buffers_open(&buffers, 4 * count + 1) != 0)
        return NULL;
    Coded *coded = PyMem_Calloc((size_t)count + 1, sizeof(Coded));
    PyObject *result = NULL;
    if (coded == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (order != Py_None && (places = buffers_add(&buffers, order, 0)) == NULL)
        goto done;
    for (Py_ssize_t index = 0; index < count; index++) {
        Coded *column = &coded[index];
        if (coded_open(column, &buffers, PyList_GetItem(columns, index)) != 0)
            goto done;
        const Py_ssize_t rows = column->codes.count;
        if (places != NULL && (places->itemsize != 4 || places->len != 4 * rows)) {
            too_small("the order of the rows", places->len, 4 * rows);
            goto done;
        }
        column->order = places == NULL ? NULL : places->buf;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t index = 0; index < count && valid; index++)
        valid = gather_coded(&coded[index]);
    Py_END_ALLOW_THREADS
    if (valid)
        result = Py_NewRef(Py_None);
    else
        PyErr_SetString(PyExc_ValueError, "a code or a row is out of range");
done:
    PyMem_Free(coded);
    buffers_close(&buffers);
    return result;
}

#endif
