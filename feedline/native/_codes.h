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
            ((uint64_t *)to->buf)[((const code_type *)codes.numbers)[row]]++;

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

/* A table of int64 values, the codes into it that are used (count < 0: all of it), and what is found: the least and the
 * greatest of all values, and of those that are used. */
typedef struct {
    const int64_t *table;
    Py_ssize_t entries;
    Codes codes;
    int64_t ends[4];
} UsedTable;

#define MARK_CODES(code_type)                                                                               \
    for (; row < codes->count && ((const code_type *)codes->numbers)[row] < (uint64_t)entries; row++)        \
        marks[((const code_type *)codes->numbers)[row]] = 1;

/* Mostly the entries with the least and the greatest value are used, which is found soon; else all are marked. Returns 0,
 * -1 without memory, or -2 for a code that is out of range. */
static int used_find(UsedTable *used) {
    const int64_t *table = used->table;
    const Codes *codes = &used->codes;
    const Py_ssize_t entries = used->entries;
    Py_ssize_t least = 0, most = 0, row = 0;
    for (Py_ssize_t entry = 1; entry < entries; entry++) {
        least = table[entry] < table[least] ? entry : least;
        most = table[entry] > table[most] ? entry : most;
    }
    used->ends[0] = used->ends[2] = table[least];
    used->ends[1] = used->ends[3] = table[most];
    if (codes->count <= 0 || (has(codes, (uint32_t)least) && has(codes, (uint32_t)most)))
        return 0;
    char *marks = calloc((size_t)entries, 1);
    if (marks == NULL)
        return -1;
    if (codes->narrow) {
        MARK_CODES(uint16_t)
    } else {
        MARK_CODES(uint32_t)
    }
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (Py_ssize_t entry = 0; entry < entries; entry++)
        if (marks[entry]) {
            low = table[entry] < low ? table[entry] : low;
            high = table[entry] > high ? table[entry] : high;
        }
    free(marks);
    used->ends[2] = low;
    used->ends[3] = high;
    return row < codes->count ? -2 : 0;
}

static int used_open(UsedTable *used, Buffers *buffers, PyObject *pair) {
    PyObject *table, *codes;
    if (!PyArg_ParseTuple(pair, "OO", &table, &codes))
        return -1;
    const Py_buffer *view = buffers_add(buffers, table, 0);
    if (view == NULL)
        return -1;
    if (view->itemsize != 8 || view->len == 0) {
        PyErr_SetString(PyExc_ValueError, "a table has no values, or is not of int64");
        return -1;
    }
    used->table = view->buf;
    used->entries = view->len / 8;
    used->codes.count = -1;
    return codes == Py_None ? 0 : codes_open(&used->codes, buffers, codes);
}

/* used_extremes(pairs): of a table of int64 values, and codes into it or None, which stands for all of it. */
static PyObject *used_extremes(PyObject *module, PyObject *args) {
    PyObject *pairs, *result = NULL;
    Buffers buffers;
    int wrong = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &pairs))
        return NULL;
    const Py_ssize_t count = PyList_Size(pairs);
    if (buffers_open(&buffers, 2 * count) != 0)
        return NULL;
    UsedTable *used = PyMem_Calloc((size_t)count + 1, sizeof(UsedTable));
    if (used == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t index = 0; index < count; index++)
        if (used_open(&used[index], &buffers, PyList_GetItem(pairs, index)) != 0)
            goto done;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t index = 0; index < count && wrong == 0; index++)
        wrong = used_find(&used[index]);
    Py_END_ALLOW_THREADS
    if (wrong == -1) {
        PyErr_NoMemory();
        goto done;
    }
    if (wrong != 0) {
        PyErr_SetString(PyExc_ValueError, "a code is out of range");
        goto done;
    }
    result = PyList_New(count);
    for (Py_ssize_t index = 0; result != NULL && index < count; index++) {
        const int64_t *ends = used[index].ends;
        PyObject *found = Py_BuildValue("(LLLL)", (long long)ends[0], (long long)ends[1], (long long)ends[2],
                                        (long long)ends[3]);
        if (found == NULL || PyList_SetItem(result, index, found) != 0)
            Py_CLEAR(result);
    }
done:
    PyMem_Free(used);
    buffers_close(&buffers);
    return result;
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
    int counted;       /* whether the least and the greatest are found, of int64 values */
    int64_t low, high;
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
static int gather_coded(Coded *column) {
    const Py_ssize_t step = column->step, count = column->codes.count;
    const uint64_t entries = column->entries;
    Py_ssize_t row = 0;
    int64_t low = INT64_MAX, high = INT64_MIN;
    const int kind = column->size == 4 ? 0 : 1 + 2 * column->narrow + column->counted;
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
    column->low = low;
    column->high = high;
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
    PyObject *target, *table, *codes;
    Py_buffer *to, *from;
    Py_ssize_t first;
    if (!PyArg_ParseTuple(arguments, "OnnOOp", &target, &first, &column->step, &table, &codes, &column->counted))
        return -1;
    if ((to = buffers_add(buffers, target, 1)) == NULL || (from = buffers_add(buffers, table, 0)) == NULL
        || codes_open(&column->codes, buffers, codes) != 0)
        return -1;
    const Py_ssize_t count = column->codes.count, room = to->itemsize > 0 ? to->len / to->itemsize : 0;
    if (!table_open(column, from, to->itemsize) || first < 0 || column->step < 1
        || (count > 0 && (first >= room || count - 1 > (room - 1 - first) / column->step))
        || (column->counted && column->size != 8)) {
        PyErr_SetString(PyExc_ValueError, "a target is too small for its codes, or its values have another size");
        return -1;
    }
    column->target = (char *)to->buf + first * column->size;
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
    if (buffers_open(&buffers, 3 * count + 1) != 0)
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
    if (!valid) {
        PyErr_SetString(PyExc_ValueError, "a code or a row is out of range");
        goto done;
    }
    result = PyList_New(0);
    for (Py_ssize_t index = 0; result != NULL && index < count; index++) {
        if (!coded[index].counted)
            continue;
        PyObject *pair = Py_BuildValue("(LL)", (long long)coded[index].low, (long long)coded[index].high);
        if (pair == NULL || PyList_Append(result, pair) != 0)
            Py_CLEAR(result);
        Py_XDECREF(pair);
    }
done:
    PyMem_Free(coded);
    buffers_close(&buffers);
    return result;
}

#endif
