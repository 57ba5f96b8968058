/* Gather, slice, compare and hash rows of columns without the interpreter's lock.
 *
 * Every function takes objects with the buffer protocol, checks that they are contiguous and large enough, and then
 * releases the lock until it has finished. Nothing is computed but offsets, extremes and hashes of integers, so results
 * are equal to numpy's bit by bit.
 * Rows of several parts laid end to end are addressed by the index among all of them and the number of their part: the
 * address of a part's values is moved back by its first row, so that the index serves all parts.
 *
 * Compiled for the stable ABI of Python 3.11; see rows.py for arguments and results.
 */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
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

/* The distance of two offsets, which wraps where they are not those of lists. */
static int64_t distance(int64_t first, int64_t next) {
    return (int64_t)((uint64_t)next - (uint64_t)first);
}

/* Offsets of lists in values of `size` bytes, of which there are `bytes`. */
static int check_borders(const int64_t *borders, Py_ssize_t rows, Py_ssize_t size, Py_ssize_t bytes) {
    int64_t falls = borders[0];
    for (Py_ssize_t row = 0; row < rows; row++)
        falls |= borders[row + 1] | distance(borders[row], borders[row + 1]);
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

/* Blocks that were sent lie at any address. */
#define GATHER_WORDS(type)                                                                                  \
    for (Py_ssize_t row = 0; row < rows->rows; row++)                                                       \
        memcpy(target + row * (Py_ssize_t)sizeof(type),                                                     \
               (const char *)bases[rows->part[row]] + rows->index[row] * (int64_t)sizeof(type), sizeof(type));

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

#include "_codes.h"
#include "_slots.h"
#include "_writers.h"
#include "_extremes.h"
#include "_matrix.h"
#include "_events.h"
#include "_sort.h"

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
    const int64_t *borders = from->buf;
    if (check_borders(borders, from->len / (Py_ssize_t)sizeof(int64_t) - 1, 0, 0) != 0)
        goto failed;
    Py_BEGIN_ALLOW_THREADS
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

/* Copy a few bytes: 64 of them if there is room, which takes no loop; what is too much is written over next. */
static void copy_run(char *to, const char *from, size_t bytes, Py_ssize_t room_to, Py_ssize_t room_from) {
    if (bytes <= 64 && room_to >= 64 && room_from >= 64)
        memcpy(to, from, 64);
    else
        memcpy(to, from, bytes);
}

/* The slices of lists, one after the other: of the lists as they are, or in an order. Returns the first list that is not
 * there, or is shorter than its slice; -1 if there is none. */
static Py_ssize_t copy_slices(const Py_buffer *source, const Py_buffer *target, Py_ssize_t size, const int64_t *borders,
                              const int64_t *ends, Py_ssize_t rows, int64_t start, const uint32_t *order) {
    const char *values = source->buf;
    for (Py_ssize_t row = 0; row < rows; row++) {
        const Py_ssize_t at = order == NULL ? row : (Py_ssize_t)order[row];
        if (order != NULL && row + 3 * AHEAD < rows) {
            const Py_ssize_t far = order[row + 3 * AHEAD], near = order[row + AHEAD];
            if (far < rows && near < rows) {
                PREFETCH(borders + far);
                PREFETCH(values + size * borders[near]);
                PREFETCH(values + size * borders[near] + 64);
            }
        }
        if (at >= rows)
            return row;
        const int64_t length = borders[at + 1] - borders[at], first = border(start, length);
        const int64_t count = ends[row + 1] - ends[row];
        if (count > length - first)
            return row;
        const Py_ssize_t from = size * (Py_ssize_t)(borders[at] + first), to = size * (Py_ssize_t)ends[row];
        copy_run((char *)target->buf + to, values + from, (size_t)(size * count), target->len - to, source->len - from);
    }
    return -1;
}

static PyObject *slice_values(PyObject *module, PyObject *args) {
    PyObject *offsets, *values, *sliced, *result, *order;
    long long start;
    Py_ssize_t size, wrong;
    Buffers buffers;
    Py_buffer *from, *source, *between, *to, *places = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOnLOOO", &offsets, &values, &size, &start, &sliced, &result, &order))
        return NULL;
    if (buffers_open(&buffers, 5) != 0)
        return NULL;
    if ((from = buffers_add(&buffers, offsets, 0)) == NULL || (source = buffers_add(&buffers, values, 0)) == NULL
        || (between = buffers_add(&buffers, sliced, 0)) == NULL || (to = buffers_add(&buffers, result, 1)) == NULL
        || (order != Py_None && (places = buffers_add(&buffers, order, 0)) == NULL))
        goto failed;
    const Py_ssize_t rows = from->len / (Py_ssize_t)sizeof(int64_t) - 1;
    const int64_t *borders = from->buf, *ends = between->buf;
    if (between->len != from->len || rows < 0) {
        too_small("the offsets of the slices", between->len, from->len);
        goto failed;
    }
    if (places != NULL && (places->itemsize != 4 || places->len != 4 * rows)) {
        too_small("the order of the lists", places->len, 4 * rows);
        goto failed;
    }
    if (check_size(size) != 0 || check_borders(borders, rows, size, source->len) != 0
        || check_borders(ends, rows, size, to->len) != 0)
        goto failed;
    if (to->len != size * (Py_ssize_t)ends[rows]) {
        too_small("the slices' values", to->len, size * (Py_ssize_t)ends[rows]);
        goto failed;
    }
    Py_BEGIN_ALLOW_THREADS
    wrong = copy_slices(source, to, size, borders, ends, rows, start, places == NULL ? NULL : places->buf);
    Py_END_ALLOW_THREADS
    if (wrong >= 0) {
        PyErr_Format(PyExc_ValueError, "the slice of list %zd is longer than what the list holds from its start, or "
                     "there is no such list", wrong);
        goto failed;
    }
    buffers_close(&buffers);
    Py_RETURN_NONE;
failed:
    buffers_close(&buffers);
    return NULL;
}

/* ---- lengths of lists ---------------------------------------------------------------------------------------------- */

/* The shortest of some lists, and the longest: -1 without any, -2 where offsets fall. */
static int64_t longest_of(const int64_t *borders, Py_ssize_t rows, int64_t *shortest) {
    int64_t longest = -1, least = INT64_MAX;
    for (Py_ssize_t row = 0; row < rows; row++) {
        const int64_t length = distance(borders[row], borders[row + 1]);
        longest = length > longest ? length : longest;
        least = length < least ? length : least;
    }
    *shortest = least;
    return least < 0 ? -2 : longest;
}

/* count_lengths(offsets, rows, counts): add to a row of the matrix how often each length occurs, for each array of
 * offsets, unless the longest has no place in it. Returns the longest of each, -1 without lists. */
static PyObject *count_lengths(PyObject *module, PyObject *args) {
    PyObject *arrays, *numbers, *matrix, *result = NULL;
    Py_ssize_t width;
    Buffers buffers;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!On", &PyTuple_Type, &arrays, &PyTuple_Type, &numbers, &matrix, &width))
        return NULL;
    const Py_ssize_t count = PyTuple_Size(arrays);
    if (buffers_open(&buffers, count + 1) != 0)
        return NULL;
    int64_t *found = PyMem_Calloc((size_t)count + 1, sizeof(int64_t)), falls = 0;
    Py_ssize_t *places = PyMem_Calloc((size_t)count + 1, sizeof(Py_ssize_t));
    if (found == NULL || places == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    const Py_buffer *to = buffers_add(&buffers, matrix, 1);
    if (to == NULL)
        goto done;
    for (Py_ssize_t index = 0; index < count; index++) {
        const Py_buffer *view = buffers_add(&buffers, PyTuple_GetItem(arrays, index), 0);
        PyObject *number = view == NULL ? NULL : PyTuple_GetItem(numbers, index);
        places[index] = number == NULL ? -1 : PyLong_AsSsize_t(number);
        if (PyErr_Occurred())
            goto done;
        if (view->itemsize != 8 || view->len < 8 || width < 1 || places[index] < 0 || places[index] >= to->len / 8 / width) {
            PyErr_SetString(PyExc_ValueError, "lists have no offsets, or no place among the counts");
            goto done;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t index = 0; index < count; index++) {
        const Py_buffer *view = &buffers.views[index + 1];
        const int64_t *borders = view->buf;
        const Py_ssize_t rows = view->len / 8 - 1;
        uint64_t *counts = (uint64_t *)to->buf + places[index] * width;
        int64_t shortest;
        found[index] = longest_of(borders, rows, &shortest);
        falls |= found[index] == -2;
        if (found[index] < 0 || found[index] >= width)
            continue;
        if (shortest == found[index]) /* as of scalars */
            counts[shortest] += (uint64_t)rows;
        else
            for (Py_ssize_t row = 0; row < rows; row++)
                counts[distance(borders[row], borders[row + 1])]++;
    }
    Py_END_ALLOW_THREADS
    if (falls) {
        PyErr_SetString(PyExc_ValueError, "the offsets of lists fall");
        goto done;
    }
    result = PyList_New(count);
    for (Py_ssize_t index = 0; result != NULL && index < count; index++) {
        PyObject *longest = PyLong_FromLongLong(found[index]);
        if (longest == NULL || PyList_SetItem(result, index, longest) != 0)
            Py_CLEAR(result);
    }
done:
    PyMem_Free(found);
    PyMem_Free(places);
    buffers_close(&buffers);
    return result;
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

/* ---- hashes ------------------------------------------------------------------------------------------------------ */

/* The finaliser of splitmix64. */
static uint64_t mix(uint64_t word) {
    word = (word ^ word >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    word = (word ^ word >> 27) * UINT64_C(0x94D049BB133111EB);
    return word ^ word >> 31;
}

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
    return mix(word + (position + 1) * UINT64_C(0x9E3779B97F4A7C15));
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

/* The remainders of a division by the same number: its reciprocal is 2^64 + `factor`, by 2^(64 + bits), rounded up. */
typedef struct {
    uint64_t divisor, factor;
    int bits;
} Divisor;

static Divisor divisor_of(uint64_t number) {
    Divisor divisor = {number, 0, 0};
#ifdef __SIZEOF_INT128__
    while (divisor.bits < 64 && (UINT64_C(1) << divisor.bits) < number)
        divisor.bits++;
    const uint64_t rest = (divisor.bits < 64 ? UINT64_C(1) << divisor.bits : 0) - number;
    divisor.factor = (uint64_t)(((unsigned __int128)rest << 64) / number + 1);
#endif
    return divisor;
}

static uint64_t remainder_of(uint64_t word, const Divisor *by) {
#ifdef __SIZEOF_INT128__
    if (by->bits == 0)
        return 0;
    const uint64_t high = (uint64_t)((unsigned __int128)by->factor * word >> 64);
    return word - ((high + ((word - high) >> 1)) >> (by->bits - 1)) * by->divisor;
#else
    return word % by->divisor;
#endif
}

static void bucket_digests(uint64_t *digests, Py_ssize_t rows, uint64_t start, uint64_t buckets) {
    const Divisor by = divisor_of(buckets);
    for (Py_ssize_t row = 0; row < rows; row++)
        digests[row] = remainder_of(mix(digests[row] + start), &by);
}

/* digest_strings(offsets, data, size, out, start, buckets): as `digest_views`, of strings that lie end to end, whose
 * offsets are numbers of 4 or 8 bytes. */
static PyObject *digest_strings(PyObject *module, PyObject *args) {
    PyObject *offsets, *data, *result;
    Py_ssize_t size;
    unsigned long long start, buckets;
    Buffers buffers;
    Py_buffer *borders, *bytes, *out;
    int wrong = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOnOKK", &offsets, &data, &size, &result, &start, &buckets)
        || buffers_open(&buffers, 3) != 0)
        return NULL;
    int failed = (borders = buffers_add(&buffers, offsets, 0)) == NULL
                 || (bytes = buffers_add(&buffers, data, 0)) == NULL || (out = buffers_add(&buffers, result, 1)) == NULL;
    if (!failed && size != 4 && size != 8)
        failed = too_small("an offset of strings", size, 8);
    if (!failed && borders->len != size * (out->len / 8 + 1))
        failed = too_small("the offsets of strings", borders->len, size * (out->len / 8 + 1));
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        const Py_ssize_t rows = out->len / 8;
        for (Py_ssize_t row = 0; row < rows && !wrong; row++) {
            const int64_t first = size == 4 ? ((const int32_t *)borders->buf)[row] : ((const int64_t *)borders->buf)[row];
            const int64_t last =
                size == 4 ? ((const int32_t *)borders->buf)[row + 1] : ((const int64_t *)borders->buf)[row + 1];
            wrong = first < 0 || last < first || last > bytes->len || last - first > INT32_MAX;
            if (!wrong)
                ((uint64_t *)out->buf)[row] = digest_long((const uint8_t *)bytes->buf + first, (uint32_t)(last - first));
        }
        if (!wrong && buckets)
            bucket_digests(out->buf, rows, start, buckets);
        Py_END_ALLOW_THREADS
    }
    if (wrong)
        PyErr_SetString(PyExc_ValueError, "a string lies outside its buffer");
    buffers_close(&buffers);
    return failed || wrong ? NULL : Py_NewRef(Py_None);
}

/* digest_views(views, data, out, start, buckets): of Arrow's string views, with one buffer of `data` for each number in
 * them. buckets: if not 0, `out` gets mix(digest + start) modulo it instead. */
static PyObject *digest_views(PyObject *module, PyObject *args) {
    PyObject *views, *data, *result;
    unsigned long long start, buckets;
    Buffers buffers;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!OKK", &views, &PyTuple_Type, &data, &result, &start, &buckets)
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
        if (buckets)
            bucket_digests(digests, in->len / 16, start, buckets);
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
    {"write_slot", write_slot, METH_VARARGS, "write_slot(target, header, gaps, parts, copies): write a batch."},
    {"digest_views", digest_views, METH_VARARGS, "digest_views(views, data, out, start, buckets): the digests, or buckets, of strings."},
    {"digest_strings", digest_strings, METH_VARARGS, "digest_strings(offsets, data, size, out, start, buckets)."},
    {"count_codes", count_codes, METH_VARARGS, "count_codes(codes, counts): count how often each occurs."},
    {"used_extremes", used_extremes, METH_VARARGS, "used_extremes(pairs): of tables, and of what codes use of them."},
    {"count_lengths", count_lengths, METH_VARARGS, "count_lengths(offsets, rows, counts): how often each length is."},
    {"gather_codes", gather_codes, METH_VARARGS, "gather_codes(columns, order): the values that codes stand for."},
    {"extremes", extremes, METH_VARARGS, "extremes(arrays, out): the least and the greatest value of each."},
    {"lay_columns", lay_columns, METH_VARARGS, "lay_columns(matrix, width, numbers, columns)"},
    {"take_columns", take_columns, METH_VARARGS, "take_columns(matrix, width, numbers, columns)"},
    {"slice_offsets", slice_offsets, METH_VARARGS, "slice_offsets(offsets, start, stop, out): offsets of slices."},
    {"slice_values", slice_values, METH_VARARGS, "slice_values(offsets, values, size, start, sliced, out, order)."},
    {"sort_words", sort_words, METH_O, "sort_words(words): sort words whose high bits are random, in place."},
    {"last_events", last_events, METH_VARARGS, "last_events(rows, known, pools, lasts, offsets, positions, tags)."},
    {"bisect", bisect, METH_VARARGS, "bisect(values, low, high, bounds, found): the first that is not below."},
    {"equal_neighbours", equal_neighbours, METH_VARARGS, "equal_neighbours(offsets, values, size, out)."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_rows", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__rows(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && (PyModule_AddIntConstant(module, "VERSION", 19) != 0 || add_queue(module) != 0)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
