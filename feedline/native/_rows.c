/* Gather, slice, compare and hash rows of columns without the interpreter's lock.
 *
 * Every function takes objects with the buffer protocol, checks that they are contiguous and large enough, and then
 * releases the lock until it has finished. Nothing is computed but offsets and hashes of integers, so results are equal
 * to numpy's bit by bit.
 * Rows of several parts laid end to end are addressed by the index among all of them and the number of their part: the
 * address of a part's values is moved back by its first row, so that the index serves all parts.
 *
 * Compiled for the stable ABI of Python 3.11; see rows.py for arguments and results.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define AHEAD 12 /* rows whose values are requested before they are copied: their addresses are random */

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

/* The buffers of one call, released together. */
typedef struct {
    Py_buffer *views;
    Py_ssize_t used, room;
} Buffers;

static int buffers_open(Buffers *buffers, Py_ssize_t room) {
    buffers->used = 0;
    buffers->room = room;
    buffers->views = PyMem_Calloc((size_t)(room ? room : 1), sizeof(Py_buffer));
    if (buffers->views == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static void buffers_close(Buffers *buffers) {
    for (Py_ssize_t index = 0; index < buffers->used; index++)
        PyBuffer_Release(&buffers->views[index]);
    PyMem_Free(buffers->views);
}

static Py_buffer *buffers_add(Buffers *buffers, PyObject *object, int writable) {
    if (buffers->used >= buffers->room) {
        PyErr_SetString(PyExc_ValueError, "the arguments hold more buffers than their sizes say");
        return NULL;
    }
    Py_buffer *view = &buffers->views[buffers->used];
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
        return NULL;
    buffers->used++;
    return view;
}

static int too_small(const char *what, Py_ssize_t got, Py_ssize_t expected) {
    PyErr_Format(PyExc_ValueError, "%s has a wrong size: got %zd bytes, expected %zd", what, got, expected);
    return -1;
}

/* A size of a value or a row in bytes: products with counts of rows that fit into memory cannot overflow. */
static int check_size(Py_ssize_t size) {
    if (size >= 0 && size <= INT32_MAX)
        return 0;
    PyErr_Format(PyExc_ValueError, "a value's size is out of range: got %zd bytes, expected 0 to 2^31 - 1", size);
    return -1;
}

/* Offsets of lists in values of `size` bytes, of which there are `bytes`. */
static int check_borders(const int64_t *borders, Py_ssize_t rows, Py_ssize_t size, Py_ssize_t bytes) {
    int64_t falls = borders[0];
    for (Py_ssize_t row = 0; row < rows; row++)
        falls |= borders[row + 1] - borders[row];
    if (falls < 0) {
        PyErr_SetString(PyExc_ValueError, "the offsets of lists fall, or are negative");
        return -1;
    }
    if (size > 0 && borders[rows] > bytes / size) {
        PyErr_Format(PyExc_ValueError, "the values of lists have a wrong size: got %zd bytes, expected %lld of %zd each",
                     bytes, (long long)borders[rows], size);
        return -1;
    }
    return 0;
}

/* ---- gathers ----------------------------------------------------------------------------------------------------- */

/* The rows to gather: their indices among all rows of the parts, the parts they are of, and where each part begins. */
typedef struct {
    const int64_t *index;
    const uint16_t *part;
    const int64_t *starts;
    Py_ssize_t rows, parts;
} Rows;

/* Rows [start, stop) of these. parts: how many the caller has room for, by len(starts), which counts items of any
 * size. */
static int rows_open(Rows *rows, Buffers *buffers, PyObject *index, PyObject *part, PyObject *starts,
                     Py_ssize_t parts, Py_ssize_t start, Py_ssize_t stop) {
    Py_buffer *indices = buffers_add(buffers, index, 0);
    Py_buffer *numbers = indices == NULL ? NULL : buffers_add(buffers, part, 0);
    Py_buffer *firsts = numbers == NULL ? NULL : buffers_add(buffers, starts, 0);
    if (firsts == NULL)
        return -1;
    rows->index = indices->buf;
    rows->part = numbers->buf;
    rows->starts = firsts->buf;
    rows->rows = indices->len / (Py_ssize_t)sizeof(int64_t);
    rows->parts = firsts->len / (Py_ssize_t)sizeof(int64_t);
    if (firsts->len != parts * (Py_ssize_t)sizeof(int64_t))
        return too_small("the first rows of the parts", firsts->len, parts * (Py_ssize_t)sizeof(int64_t));
    if (numbers->len != rows->rows * (Py_ssize_t)sizeof(uint16_t))
        return too_small("the array of parts", numbers->len, rows->rows * (Py_ssize_t)sizeof(uint16_t));
    if (start < 0 || stop < start || stop > rows->rows) {
        PyErr_Format(PyExc_ValueError, "rows %zd to %zd are not among the %zd of a piece", start, stop, rows->rows);
        return -1;
    }
    rows->index += start;
    rows->part += start;
    rows->rows = stop - start;
    uint16_t last = 0;
    for (Py_ssize_t row = 0; row < rows->rows; row++)
        last = rows->part[row] > last ? rows->part[row] : last;
    if (rows->rows > 0 && last >= parts) {
        PyErr_Format(PyExc_ValueError, "a row is of part %d: expected one of %zd parts", (int)last, parts);
        return -1;
    }
    return 0;
}

/* The addresses that a part's rows would have if it began at row 0, for a tuple with one buffer per part. */
static int addresses(Buffers *buffers, PyObject *sources, const Rows *rows, Py_ssize_t width, uintptr_t *bases) {
    if (!PyTuple_Check(sources) || PyTuple_Size(sources) != rows->parts) {
        PyErr_SetString(PyExc_ValueError, "the sources of a column are a tuple with one buffer per part");
        return -1;
    }
    for (Py_ssize_t part = 0; part < rows->parts; part++) {
        Py_buffer *view = buffers_add(buffers, PyTuple_GetItem(sources, part), 0);
        if (view == NULL)
            return -1;
        bases[part] = (uintptr_t)view->buf - (uintptr_t)(rows->starts[part] * width);
    }
    return 0;
}

#define GATHER_WORDS(type)                                                                                  \
    for (Py_ssize_t row = 0; row < rows->rows; row++)                                                       \
        ((type *)target)[row] = ((const type *)bases[rows->part[row]])[rows->index[row]];

static void gather_column(char *target, size_t width, const uintptr_t *bases, const Rows *rows) {
    if (width == sizeof(int64_t)) {
        GATHER_WORDS(int64_t)
    } else if (width == sizeof(int32_t)) {
        GATHER_WORDS(int32_t)
    } else {
        for (Py_ssize_t row = 0; row < rows->rows; row++) {
            if (row + AHEAD < rows->rows)
                PREFETCH((const char *)(bases[rows->part[row + AHEAD]] + width * (size_t)rows->index[row + AHEAD]));
            memcpy(target + width * (size_t)row,
                   (const char *)(bases[rows->part[row]] + width * (size_t)rows->index[row]), width);
        }
    }
}

/* The lists of the rows, one after the other; `ends` are the offsets of the result, which say how long they are. */
static void gather_ragged(char *target, size_t size, const int64_t *ends, const uintptr_t *offsets,
                          const uintptr_t *values, const Rows *rows) {
    for (Py_ssize_t row = 0; row < rows->rows; row++) {
        if (row + 2 * AHEAD < rows->rows)
            PREFETCH((const int64_t *)offsets[rows->part[row + 2 * AHEAD]] + rows->index[row + 2 * AHEAD]);
        if (row + AHEAD < rows->rows) {
            const uint16_t part = rows->part[row + AHEAD];
            const char *start = (const char *)values[part]
                + size * (size_t)((const int64_t *)offsets[part])[rows->index[row + AHEAD]];
            PREFETCH(start);
            PREFETCH(start + 64);
        }
        const uint16_t part = rows->part[row];
        const int64_t first = ((const int64_t *)offsets[part])[rows->index[row]];
        memcpy(target + size * (size_t)(ends[row] - ends[0]), (const char *)values[part] + size * (size_t)first,
               size * (size_t)(ends[row + 1] - ends[row]));
    }
}

#include "_slots.h"

/* ---- slices of lists --------------------------------------------------------------------------------------------- */

static int64_t border(int64_t position, int64_t length) {
    if (position < 0)
        return position + length > 0 ? position + length : 0;
    return position < length ? position : length;
}

static int64_t kept(int64_t start, int64_t stop, int64_t length) {
    const int64_t rest = border(stop, length) - border(start, length);
    return rest > 0 ? rest : 0;
}

static PyObject *slice_offsets(PyObject *module, PyObject *args) {
    PyObject *offsets, *result;
    long long start, stop;
    Buffers buffers;
    Py_buffer *from, *to;
    (void)module;
    if (!PyArg_ParseTuple(args, "OLLO", &offsets, &start, &stop, &result))
        return NULL;
    if (buffers_open(&buffers, 2) != 0)
        return NULL;
    if ((from = buffers_add(&buffers, offsets, 0)) == NULL || (to = buffers_add(&buffers, result, 1)) == NULL)
        goto failed;
    if (to->len != from->len || to->len < (Py_ssize_t)sizeof(int64_t)) {
        too_small("the offsets of the slices", to->len, from->len);
        goto failed;
    }
    Py_BEGIN_ALLOW_THREADS
    const int64_t *borders = from->buf;
    int64_t *ends = to->buf;
    ends[0] = 0;
    for (Py_ssize_t row = 0; row < from->len / (Py_ssize_t)sizeof(int64_t) - 1; row++)
        ends[row + 1] = ends[row] + kept(start, stop, borders[row + 1] - borders[row]);
    Py_END_ALLOW_THREADS
    buffers_close(&buffers);
    Py_RETURN_NONE;
failed:
    buffers_close(&buffers);
    return NULL;
}

static PyObject *slice_values(PyObject *module, PyObject *args) {
    PyObject *offsets, *values, *sliced, *result;
    long long start;
    Py_ssize_t size;
    Buffers buffers;
    Py_buffer *from, *source, *between, *to;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOnLOO", &offsets, &values, &size, &start, &sliced, &result))
        return NULL;
    if (buffers_open(&buffers, 4) != 0)
        return NULL;
    if ((from = buffers_add(&buffers, offsets, 0)) == NULL || (source = buffers_add(&buffers, values, 0)) == NULL
        || (between = buffers_add(&buffers, sliced, 0)) == NULL || (to = buffers_add(&buffers, result, 1)) == NULL)
        goto failed;
    const Py_ssize_t rows = from->len / (Py_ssize_t)sizeof(int64_t) - 1;
    const int64_t *borders = from->buf, *ends = between->buf;
    if (between->len != from->len || rows < 0) {
        too_small("the offsets of the slices", between->len, from->len);
        goto failed;
    }
    if (check_size(size) != 0 || check_borders(borders, rows, size, source->len) != 0
        || check_borders(ends, rows, size, to->len) != 0)
        goto failed;
    if (to->len != size * (Py_ssize_t)ends[rows]) {
        too_small("the slices' values", to->len, size * (Py_ssize_t)ends[rows]);
        goto failed;
    }
    for (Py_ssize_t row = 0; row < rows; row++) {
        const int64_t length = borders[row + 1] - borders[row];
        if (ends[row + 1] - ends[row] > length - border(start, length)) {
            PyErr_Format(PyExc_ValueError, "the slice of list %zd is longer than what the list holds from its start",
                         row);
            goto failed;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < rows; row++) {
        const int64_t first = borders[row] + border(start, borders[row + 1] - borders[row]);
        memcpy((char *)to->buf + size * (Py_ssize_t)ends[row], (const char *)source->buf + size * (Py_ssize_t)first,
               (size_t)size * (size_t)(ends[row + 1] - ends[row]));
    }
    Py_END_ALLOW_THREADS
    buffers_close(&buffers);
    Py_RETURN_NONE;
failed:
    buffers_close(&buffers);
    return NULL;
}

/* ---- repeated lists ---------------------------------------------------------------------------------------------- */

static PyObject *equal_neighbours(PyObject *module, PyObject *args) {
    PyObject *offsets, *values, *result;
    Py_ssize_t size;
    Buffers buffers;
    Py_buffer *from, *source, *to;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOnO", &offsets, &values, &size, &result))
        return NULL;
    if (buffers_open(&buffers, 3) != 0)
        return NULL;
    if ((from = buffers_add(&buffers, offsets, 0)) == NULL || (source = buffers_add(&buffers, values, 0)) == NULL ||
        (to = buffers_add(&buffers, result, 1)) == NULL)
        goto failed;
    const int64_t *borders = from->buf;
    const Py_ssize_t rows = from->len / (Py_ssize_t)sizeof(int64_t) - 1;
    if (rows < 1 || to->len != rows - 1) {
        too_small("the rows that are compared", to->len, rows - 1);
        goto failed;
    }
    if (check_size(size) != 0 || check_borders(borders, rows, size, source->len) != 0)
        goto failed;
    Py_BEGIN_ALLOW_THREADS
    const char *bytes = source->buf;
    char *equal = to->buf;
    for (Py_ssize_t row = 1; row < rows; row++) {
        const int64_t length = borders[row + 1] - borders[row];
        equal[row - 1] = length == borders[row] - borders[row - 1] &&
                         memcmp(bytes + borders[row] * size, bytes + borders[row - 1] * size, length * size) == 0;
    }
    Py_END_ALLOW_THREADS
    buffers_close(&buffers);
    Py_RETURN_NONE;
failed:
    buffers_close(&buffers);
    return NULL;
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

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

/* A column's target, and the values that its codes stand for: of the target's size, or int32 of int64. Of lists whose
 * slices are gathered, `from` are the offsets of their codes, and `to` those of the slices, which begin at `start`.
 * `order`, if any: the row (or list) whose values come first, second and so on. */
typedef struct {
    char *target;
    Py_ssize_t step, size;
    const void *table;
    int narrow;
    Codes codes;
    uint64_t entries;
    int64_t *extremes; /* of int64 values, or NULL */
    const int64_t *from, *to;
    Py_ssize_t lists;
    int64_t start;
    const uint32_t *order;
} Coded;

#define GATHER_ROWS(type, stored, code_type, first, count, keep)                                            \
    for (row = 0; row < (count) && codes[(first) + row] < entries; row++) {                                 \
        const type value = (type)table[codes[(first) + row]];                                               \
        target[row * step] = value;                                                                         \
        keep                                                                                                \
    }

#define GATHER_ORDERED(type, stored, code_type, keep)                                                        \
    for (row = 0; row < column->codes.count; row++) {                                                       \
        const uint32_t at = column->order[row];                                                             \
        if (at >= column->codes.count || codes[at] >= entries)                                              \
            break;                                                                                          \
        const type value = (type)table[codes[at]];                                                          \
        target[row * step] = value;                                                                         \
        keep                                                                                                \
    }

#define GATHER_CODES(type, stored, code_type, keep)                                                         \
    {                                                                                                       \
        const stored *table = column->table;                                                                \
        const code_type *codes = column->codes.numbers;                                                     \
        type *target = (type *)column->target;                                                              \
        if (column->from == NULL) {                                                                         \
            if (column->order == NULL) {                                                                    \
                GATHER_ROWS(type, stored, code_type, 0, column->codes.count, keep)                          \
            } else {                                                                                        \
                GATHER_ORDERED(type, stored, code_type, keep)                                               \
            }                                                                                               \
            valid = row == column->codes.count;                                                             \
        }                                                                                                   \
        for (Py_ssize_t list = 0; list < column->lists && valid; list++) {                                  \
            const Py_ssize_t at = column->order == NULL ? list : (Py_ssize_t)column->order[list];           \
            if (column->order != NULL && list + 3 * AHEAD < column->lists) {                                \
                const Py_ssize_t far = column->order[list + 3 * AHEAD], near = column->order[list + AHEAD]; \
                PREFETCH(column->from + far);                                                               \
                if (near < column->lists) {                                                                 \
                    PREFETCH(codes + column->from[near]);                                                   \
                    PREFETCH((const char *)(codes + column->from[near]) + 64);                              \
                }                                                                                           \
            }                                                                                               \
            if (at >= column->lists)                                                                        \
                return 0;                                                                                   \
            const int64_t length = column->from[at + 1] - column->from[at];                                 \
            const int64_t first = border(column->start, length), count = column->to[list + 1] - column->to[list]; \
            if (first + count > length)                                                                     \
                return 0;                                                                                   \
            GATHER_ROWS(type, stored, code_type, column->from[at] + first, count, keep)                     \
            valid = row == count;                                                                           \
            target += count;                                                                                \
        }                                                                                                   \
    }                                                                                                       \
    break;
#define KEEP_EXTREMES                                                                                       \
    low = value < low ? value : low;                                                                        \
    high = value > high ? value : high;

/* Returns whether all codes, and slices, are in range. */
static int gather_coded(const Coded *column) {
    const Py_ssize_t step = column->step;
    const uint64_t entries = column->entries;
    Py_ssize_t row = 0;
    int valid = 1;
    int64_t low = INT64_MAX, high = INT64_MIN;
    const int kind = column->size == 4 ? 0 : column->narrow ? 2 : column->extremes != NULL ? 3 : 1;
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
        GATHER_CODES(int64_t, int32_t, uint32_t, KEEP_EXTREMES)
    case 5:
        GATHER_CODES(int64_t, int32_t, uint16_t, KEEP_EXTREMES)
    case 6:
        GATHER_CODES(int64_t, int64_t, uint32_t, KEEP_EXTREMES)
    case 7:
        GATHER_CODES(int64_t, int64_t, uint16_t, KEEP_EXTREMES)
    }
    if (column->extremes != NULL) {
        column->extremes[0] = low;
        column->extremes[1] = high;
    }
    return valid;
}

/* Read the offsets of lists and of their slices, and how many codes these have. */
static Py_ssize_t slices_open(Coded *column, Buffers *buffers, PyObject *arguments) {
    PyObject *from, *to;
    long long start;
    Py_buffer *whole, *cut;
    if (!PyArg_ParseTuple(arguments, "LOO", &start, &from, &to))
        return -1;
    if ((whole = buffers_add(buffers, from, 0)) == NULL || (cut = buffers_add(buffers, to, 0)) == NULL)
        return -1;
    if (whole->len < (Py_ssize_t)sizeof(int64_t) || whole->len != cut->len) {
        too_small("the array of the slices' offsets", cut->len, whole->len);
        return -1;
    }
    column->from = whole->buf;
    column->to = cut->buf;
    column->lists = whole->len / (Py_ssize_t)sizeof(int64_t) - 1;
    column->start = start;
    if (check_borders(column->from, column->lists, 1, column->codes.count) != 0
        || check_borders(column->to, column->lists, 0, 0) != 0)
        return -1;
    return (Py_ssize_t)(column->to[column->lists] - column->to[0]);
}

/* Read the arguments of a column. */
static int coded_open(Coded *column, Buffers *buffers, PyObject *arguments) {
    PyObject *target, *table, *codes, *extremes, *slices;
    Py_buffer *to, *from, *bounds = NULL;
    Py_ssize_t first;
    if (!PyArg_ParseTuple(arguments, "OnnOOOO", &target, &first, &column->step, &table, &codes, &extremes, &slices))
        return -1;
    if ((to = buffers_add(buffers, target, 1)) == NULL || (from = buffers_add(buffers, table, 0)) == NULL
        || codes_open(&column->codes, buffers, codes) != 0
        || (extremes != Py_None && (bounds = buffers_add(buffers, extremes, 1)) == NULL))
        return -1;
    const Py_ssize_t count = slices == Py_None ? column->codes.count : slices_open(column, buffers, slices);
    if (count < 0)
        return -1;
    column->size = to->itemsize;
    column->narrow = from->itemsize != to->itemsize;
    const Py_ssize_t room = column->size ? to->len / column->size : 0;
    if ((column->size != 4 && column->size != 8)
        || (column->narrow && (from->itemsize != 4 || column->size != 8)) || first < 0 || column->step < 1
        || (column->from != NULL && (first != 0 || column->step != 1))
        || (count > 0 && (first >= room || count - 1 > (room - 1 - first) / column->step))
        || (bounds != NULL && (column->size != 8 || bounds->len != 2 * (Py_ssize_t)sizeof(int64_t)))) {
        PyErr_SetString(PyExc_ValueError, "a target is too small for its codes, or its values have another size");
        return -1;
    }
    column->target = (char *)to->buf + first * column->size;
    column->table = from->buf;
    column->entries = (uint64_t)(from->len / from->itemsize);
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
    if (buffers_open(&buffers, 6 * count + 1) != 0)
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
        const Py_ssize_t rows = column->from == NULL ? column->codes.count : column->lists;
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
        PyErr_SetString(PyExc_ValueError, "a code or a row is out of range, or a slice is longer than its list");
done:
    PyMem_Free(coded);
    buffers_close(&buffers);
    return result;
}

/* ---- hashes ------------------------------------------------------------------------------------------------------ */

/* A string's word, 8 bytes or fewer, mixed with its position: see hashing.py. */
static uint64_t mixed(const uint8_t *bytes, uint32_t size, uint64_t position) {
    uint64_t word = 0;
    if (size >= 8)
        memcpy(&word, bytes, 8);
    else
        memcpy(&word, bytes, size);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    word += (position + 1) * UINT64_C(0x9E3779B97F4A7C15);
    word = (word ^ word >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    word = (word ^ word >> 27) * UINT64_C(0x94D049BB133111EB);
    return word ^ word >> 31;
}

/* Of a string that lies in its view, with zeros behind it. */
static uint64_t digest_short(const uint8_t *bytes, uint32_t length) {
    return length + (length > 0 ? mixed(bytes, 8, 0) : 0) + (length > 8 ? mixed(bytes + 8, 4, 1) : 0);
}

static uint64_t digest_long(const uint8_t *bytes, uint32_t length) {
    uint64_t sum = length;
    for (uint32_t at = 0; at < length; at += 8)
        sum += mixed(bytes + at, length - at, at / 8);
    return sum;
}

/* digest_views(views, data, out): of Arrow's string views, with one buffer of `data` for each number in them. */
static PyObject *digest_views(PyObject *module, PyObject *args) {
    PyObject *views, *data, *result;
    Buffers buffers;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!O", &views, &PyTuple_Type, &data, &result)
        || buffers_open(&buffers, PyTuple_Size(data) + 2) != 0)
        return NULL;
    Py_ssize_t parts = PyTuple_Size(data), opened = 0;
    Py_buffer *in = buffers_add(&buffers, views, 0);
    Py_buffer *out = in == NULL ? NULL : buffers_add(&buffers, result, 1);
    const Py_buffer *first = &buffers.views[2];
    while (out != NULL && opened < parts && buffers_add(&buffers, PyTuple_GetItem(data, opened), 0) != NULL)
        opened++;
    int failed = out == NULL || opened < parts, outside = 0;
    if (!failed && (in->len % 16 != 0 || out->len != in->len / 2))
        failed = too_small("the array of digests", out->len, in->len / 2);
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        const uint8_t *view = in->buf;
        uint64_t *digests = out->buf;
        for (Py_ssize_t row = 0; row < in->len / 16 && !outside; row++, view += 16) {
            int32_t head[4]; /* the length, and of more than 12 bytes their first four, the buffer and the offset */
            memcpy(head, view, 16);
            if (head[0] >= 0 && head[0] <= 12)
                digests[row] = digest_short(view + 4, (uint32_t)head[0]);
            else if (head[0] < 0 || head[2] < 0 || head[2] >= parts || head[3] < 0
                     || (int64_t)head[3] + head[0] > first[head[2]].len)
                outside = 1;
            else
                digests[row] = digest_long((const uint8_t *)first[head[2]].buf + head[3], (uint32_t)head[0]);
        }
        Py_END_ALLOW_THREADS
    }
    if (outside)
        PyErr_SetString(PyExc_ValueError, "a string lies outside its buffer");
    buffers_close(&buffers);
    if (failed || outside)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"write_slot", write_slot, METH_VARARGS, "write_slot(target, header, gaps, parts): write a batch into a slot."},
    {"digest_views", digest_views, METH_VARARGS, "digest_views(views, data, out): the digests of strings."},
    {"count_codes", count_codes, METH_VARARGS, "count_codes(codes, counts): count how often each occurs."},
    {"gather_codes", gather_codes, METH_VARARGS, "gather_codes(columns, order): the values that codes stand for."},
    {"slice_offsets", slice_offsets, METH_VARARGS, "slice_offsets(offsets, start, stop, out): offsets of slices."},
    {"slice_values", slice_values, METH_VARARGS, "slice_values(offsets, values, size, start, sliced, out)."},
    {"equal_neighbours", equal_neighbours, METH_VARARGS, "equal_neighbours(offsets, values, size, out)."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_rows", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__rows(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "VERSION", 11) != 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
