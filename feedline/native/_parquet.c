/* Decode the pages of a Parquet column chunk: flat columns, and lists of one level.
 *
 * The bytes come from strangers: every length, count, level and code is checked before it is used, and nothing is
 * allocated that the bytes or the footer's counts do not vouch for. What is not of the format raises ValueError.
 *
 * A `Cursor` is a position in a column chunk. Pages are handed to it decompressed, one after the other; `advance` then
 * appends rows to its vectors, with the interpreter's lock released, until there are enough or the page ends, and `take`
 * hands the vectors out. Of a dictionary's values either the codes are delivered, or the values that they stand for.
 * A cursor that is given the whole chunk, in a codec that is known here, finds its pages itself: one call reads many.
 *
 * Compiled for the stable ABI of Python 3.11; see parquet.py for arguments and results.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stddef.h>

#include "_headers.h"
#include "_look_up.h"
#include "_snappy.h"

#define BLOCK 1024          /* levels and codes that are decoded at once, in the first cache */
#define OTHER_ENCODING 62    /* a bit for all encodings with larger numbers */
#define MOST_BYTES INT32_MAX /* of strings, which 32-bit offsets count */

enum { BOOLEAN = 0, INT32 = 1, INT64 = 2, FLOAT = 4, DOUBLE = 5, BYTE_ARRAY = 6, FIXED_LEN_BYTE_ARRAY = 7 };
enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, DELTA = 5, DELTA_LENGTH = 6, DELTA_BYTES = 7, RLE_DICTIONARY = 8, SPLIT = 9 };

/* ---- memory that is handed out ----------------------------------------------------------------------------------- */

/* Bytes with the buffer protocol; views of them keep it alive. */
typedef struct {
    PyObject_HEAD
    uint8_t *bytes;
    Py_ssize_t size;
} Memory;

static PyTypeObject *memory_type, *cursor_type;
static int overwrites; /* whether bytes are overwritten before they are freed */

static int memory_buffer(PyObject *self, Py_buffer *view, int flags) {
    Memory *memory = (Memory *)self;
    return PyBuffer_FillInfo(view, self, memory->bytes, memory->size, 0, flags);
}

static void memory_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Memory *memory = (Memory *)self;
    if (overwrites && memory->bytes != NULL)
        memset(memory->bytes, 0xA5, (size_t)memory->size);
    free(memory->bytes);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* ---- results with names ------------------------------------------------------------------------------------------ */

static PyTypeObject *decoded_type, *strings_type, *table_type;

static PyStructSequence_Field decoded_fields[] = {
    {"rows", NULL}, {"elements", NULL}, {"values", NULL}, {"bytes", NULL}, {"valid", NULL}, {"nulls", NULL},
    {"starts", NULL}, {"list_valid", NULL}, {"null_lists", NULL}, {NULL, NULL},
};
static PyStructSequence_Field strings_fields[] = {
    {"offsets", NULL}, {"bytes", NULL}, {"longest", NULL}, {"is_ascii", NULL}, {NULL, NULL},
};
static PyStructSequence_Field table_fields[] = {
    {"pages", NULL}, {"encodings", NULL}, {"def_encodings", NULL}, {"rep_encodings", NULL}, {"entries", NULL},
    {NULL, NULL},
};
static PyStructSequence_Desc decoded_names = {"feedline.native._parquet.Decoded", NULL, decoded_fields, 9};
static PyStructSequence_Desc strings_names = {"feedline.native._parquet.DictionaryStrings", NULL, strings_fields, 4};
static PyStructSequence_Desc table_names = {"feedline.native._parquet.PageTable", NULL, table_fields, 5};

/* The items of a new tuple by their names. NULL after an error, such as there being no tuple. */
static PyObject *with_names(PyTypeObject *type, PyObject *tuple) {
    PyObject *result = tuple == NULL ? NULL : PyStructSequence_New(type);
    for (Py_ssize_t index = 0; result != NULL && index < PyTuple_Size(tuple); index++)
        PyStructSequence_SetItem(result, index, Py_NewRef(PyTuple_GetItem(tuple, index)));
    Py_XDECREF(tuple);
    return result;
}

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

/* Bytes that grow. There is always room for 64 more than are used, so that words may be written whole. */
typedef struct {
    uint8_t *bytes;
    size_t used, room;
    size_t before; /* bytes that were taken last: what the next rows will need */
} Vector;

static int vector_reserve(Vector *vector, size_t more) {
    if (more > PTRDIFF_MAX / 4 || vector->used > PTRDIFF_MAX / 4)
        return -1;
    const size_t needed = vector->used + more + 64;
    if (needed <= vector->room)
        return 0;
    size_t room = vector->room + vector->room / 2;
    room = room < vector->before + vector->before / 8 ? vector->before + vector->before / 8 : room;
    room = room < needed ? needed : room;
    uint8_t *bytes = realloc(vector->bytes, room);
    if (bytes == NULL)
        return -1;
    vector->bytes = bytes;
    vector->room = room;
    return 0;
}

/* Hand out a vector's bytes and begin an empty one. */
static PyObject *vector_take(Vector *vector) {
    Memory *memory = (Memory *)PyType_GenericAlloc(memory_type, 0);
    if (memory == NULL)
        return NULL;
    if (vector->bytes == NULL && vector_reserve(vector, 0) != 0) {
        Py_DECREF(memory);
        return PyErr_NoMemory();
    }
    memory->bytes = vector->bytes;
    memory->size = (Py_ssize_t)vector->used;
    const size_t before = vector->used;
    memset(vector, 0, sizeof *vector);
    vector->before = before;
    return (PyObject *)memory;
}

/* ---- a cursor ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    int physical, size;           /* bytes of a value; 0 for BYTE_ARRAY */
    uint32_t max_def, defined;    /* the level of a value that is there is max_def; `defined`: of an element, null or not */
    uint32_t listed;              /* lists: from this definition level on, a list is not null */
    int lists, codes;             /* codes: the bytes of one, 0 to deliver values */
    int prefix;                   /* the most elements of a list to deliver, 0 for all */
    int busy, failed;             /* in a method; after an error, when there are no further rows */
    const char *error;

    /* The dictionary: values of a fixed size, or the borders of strings in its bytes; and these strings end to end. */
    Py_buffer dictionary;
    int64_t entries;
    int64_t *borders;
    Vector entry_ends, entry_bytes;
    int64_t longest;
    int has_strings, is_ascii;

    /* The chunk, if it finds its pages itself: the next page, and bytes that were decompressed. */
    Py_buffer chunk;
    Page *table, *pages;
    int64_t pages_left;
    int codec;
    Vector unpacked, unpacked_entries;

    /* The page: levels, and values in one of four forms. */
    Py_buffer level_bytes, value_bytes;
    int64_t slots; /* levels that are still to come */
    Runs reps, defs, runs;
    int encoding;
    const uint8_t *at, *end; /* PLAIN, or decoded to it */
    uint8_t *decoded;        /* of a page that is decoded whole */
    int64_t *lengths, *page_lengths; /* of its strings: from the next one on, and all */
    int64_t strings, bit;    /* of them left; the next bit of PLAIN Booleans */

    /* Levels that were decoded but not yet used. */
    uint8_t rep[BLOCK], def[BLOCK];
    int ahead, level;

    /* The rows so far. */
    int64_t rows, elements;       /* lists begun; their elements, or the rows of a flat column */
    int64_t open;                 /* elements of the last list, if `prefix` limits them */
    int64_t nulls, null_lists;
    Vector values, bytes, valid, starts, list_valid;
} Cursor;

static int fail(Cursor *cursor, const char *message) {
    cursor->error = message;
    return -1;
}

static const char NO_MEMORY[] = "";
static const char LEVELS_END[] = "its levels end early";
static const char VALUES_END[] = "its values end early";
static const char BAD_CODE[] = "a code is not in its dictionary, or its codes end early";
static const char TOO_MANY[] = "its lists have more elements than 32 bits count";
static const char BEFORE_ITS_END[] = "a page begins before the one before it has ended";
static const char ENTRIES_END[] = "its dictionary ends early";
static const char TOO_LONG[] = "its strings have more bytes than 32 bits count";

static int reserve(Cursor *cursor, Vector *vector, int64_t count, size_t size) {
    return vector_reserve(vector, (size_t)count * size) == 0 ? 0 : fail(cursor, NO_MEMORY);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static int append_string(Cursor *cursor, int32_t *offsets, int64_t index, const uint8_t *bytes, int64_t length) {
    Vector *target = &cursor->bytes;
    if (length > MOST_BYTES - (int64_t)target->used)
        return fail(cursor, TOO_LONG);
    if (target->used + (size_t)length + 64 > target->room && vector_reserve(target, (size_t)length) != 0)
        return fail(cursor, NO_MEMORY);
    memcpy(target->bytes + target->used, bytes, (size_t)length);
    target->used += (size_t)length;
    offsets[index] = (int32_t)target->used; /* where it ends */
    return 0;
}

#define GATHER(type)                                                                                        \
    for (int64_t index = 0; index < some; index++)                                                          \
        memcpy(out + (size_t)index * sizeof(type), entries + (size_t)block[index] * sizeof(type), sizeof(type)); \
    break;

FAST static void narrow(uint16_t *out, const uint32_t *codes, int64_t count) {
    for (int64_t index = 0; index < count; index++)
        out[index] = (uint16_t)codes[index];
}

/* Values that codes stand for. */
static int read_coded(Cursor *cursor, uint8_t *out, int64_t count) {
    uint32_t block[BLOCK];
    const uint8_t *entries = cursor->dictionary.buf;
    const int size = cursor->size;
    for (int64_t done = 0; done < count;) {
        const int64_t some = count - done < BLOCK ? count - done : BLOCK;
        if (runs_read(&cursor->runs, block, some, (uint32_t)cursor->entries) != 0)
            return fail(cursor, BAD_CODE);
        switch (size) {
        case 8:
            GATHER(uint64_t)
        case 4:
            GATHER(uint32_t)
        case 0:
            for (int64_t index = 0; index < some; index++) {
                const int64_t start = cursor->borders[2 * block[index]], stop = cursor->borders[2 * block[index] + 1];
                if (append_string(cursor, (int32_t *)out, index, entries + start, stop - start) != 0)
                    return -1;
            }
            out += (size_t)some * sizeof(int32_t);
            break;
        default:
            for (int64_t index = 0; index < some; index++)
                memcpy(out + index * size, entries + (size_t)block[index] * (size_t)size, (size_t)size);
        }
        out += some * size;
        done += some;
    }
    return 0;
}

static int read_strings(Cursor *cursor, int32_t *offsets, int64_t count) {
    if (cursor->lengths != NULL) { /* decoded */
        for (int64_t index = 0; index < count; index++) {
            const int64_t length = *cursor->lengths++;
            if (append_string(cursor, offsets, index, cursor->at, length) != 0)
                return -1;
            cursor->at += length;
        }
        cursor->strings -= count;
        return 0;
    }
    for (int64_t index = 0; index < count; index++) {
        uint32_t length;
        if (cursor->end - cursor->at < 4)
            return fail(cursor, VALUES_END);
        memcpy(&length, cursor->at, sizeof length);
        if ((int64_t)length > cursor->end - cursor->at - 4)
            return fail(cursor, VALUES_END);
        if (append_string(cursor, offsets, index, cursor->at + 4, (int64_t)length) != 0)
            return -1;
        cursor->at += 4 + (int64_t)length;
    }
    return 0;
}

/* Codes, as numbers of 16 bits: of dictionaries that are no longer than those count. */
static int read_short_codes(Cursor *cursor, uint16_t *out, int64_t count) {
    uint32_t block[BLOCK];
    for (int64_t done = 0; done < count;) {
        const int64_t some = count - done < BLOCK ? count - done : BLOCK;
        if (runs_read(&cursor->runs, block, some, (uint32_t)cursor->entries) != 0)
            return fail(cursor, BAD_CODE);
        narrow(out + done, block, some);
        done += some;
    }
    return 0;
}

/* The most values that the rest of the page's bytes may hold. Codes and Booleans in runs are bounded by levels alone. */
static int64_t values_left(const Cursor *cursor) {
    const int64_t bytes = cursor->end - cursor->at;
    if (cursor->encoding == RLE_DICTIONARY || cursor->encoding == RLE)
        return INT64_MAX;
    if (cursor->physical == BYTE_ARRAY)
        return cursor->lengths != NULL ? cursor->strings : bytes / 4;
    return cursor->physical == BOOLEAN ? bytes * 8 - cursor->bit : bytes / cursor->size;
}

/* Append values that are there, `count` of them, where `out` has room for them and the page has as many left. */
static int read_values(Cursor *cursor, uint8_t *out, int64_t count) {
    if (count == 0)
        return 0;
    switch (cursor->encoding) {
    case RLE_DICTIONARY:
        if (!cursor->codes)
            return read_coded(cursor, out, count);
        if (cursor->codes == 2)
            return read_short_codes(cursor, (uint16_t *)out, count);
        if (runs_read(&cursor->runs, (uint32_t *)out, count, (uint32_t)cursor->entries) != 0)
            return fail(cursor, BAD_CODE);
        return 0;
    case RLE:
        return runs_read_bytes(&cursor->runs, out, count, 1) == 0 ? 0 : fail(cursor, VALUES_END);
    }
    if (cursor->physical == BYTE_ARRAY)
        return read_strings(cursor, (int32_t *)out, count);
    if (cursor->physical == BOOLEAN) {
        for (int64_t index = 0; index < count; index++, cursor->bit++)
            out[index] = cursor->at[cursor->bit >> 3] >> (cursor->bit & 7) & 1;
        return 0;
    }
    memcpy(out, cursor->at, (size_t)(count * cursor->size));
    cursor->at += count * cursor->size;
    return 0;
}

/* Bytes of a slot of the values: of a value, a code, or the end of a string. */
static size_t slot_size(const Cursor *cursor) {
    if (cursor->codes)
        return (size_t)cursor->codes;
    return cursor->physical == BYTE_ARRAY ? 4 : (size_t)cursor->size;
}

#define SPREAD(type, mask)                                                                                  \
    for (int64_t slot = 0; slot < slots; slot++) {                                                          \
        const type there = (type) - (mask)valid[slot];                                                      \
        ((type *)out)[slot] = (((const type *)values)[from] & there) | ((type)null & (type)~there);         \
        from += valid[slot];                                                                                \
    }                                                                                                       \
    break;

/* Copy values to the slots that have one; the others become `null`, of up to 8 bytes, or 0. There is one more value than
 * are copied, of any content. */
FAST static void spread(uint8_t *out, const uint8_t *values, const uint8_t *valid, int64_t slots, size_t size,
                        uint64_t null) {
    int64_t from = 0;
    switch (size) {
    case 2:
        SPREAD(uint16_t, int16_t)
    case 4:
        SPREAD(uint32_t, int32_t)
    case 8:
        SPREAD(uint64_t, int64_t)
    default:
        for (int64_t slot = 0; slot < slots; slot++) {
            if (valid[slot])
                memcpy(out + (size_t)slot * size, values + (size_t)from++ * size, size);
            else
                memset(out + (size_t)slot * size, 0, size);
        }
    }
}

/* Move the ends of strings to the slots that have one, from the last on; the others are empty: they end where the one
 * before does, which may lie before these slots. */
static void spread_ends(int32_t *out, const uint8_t *valid, int64_t slots, int64_t count) {
    for (int64_t slot = slots - 1; slot >= 0 && count <= slot; slot--)
        out[slot] = valid[slot] ? out[--count] : out[count - 1];
}

/* Read `count` values to the slots where they belong, fewer than `slots`, which are at most a block. */
static int read_sparse(Cursor *cursor, uint8_t *out, const uint8_t *valid, int64_t slots, int64_t count) {
    const size_t size = slot_size(cursor);
    uint64_t block[BLOCK + 1];
    if (cursor->physical == BYTE_ARRAY && !cursor->codes) {
        if (read_values(cursor, out, count) != 0)
            return -1;
        spread_ends((int32_t *)out, valid, slots, count);
        return 0;
    }
    if (size <= sizeof *block) {
        if (read_values(cursor, (uint8_t *)block, count) != 0)
            return -1;
        memset((uint8_t *)block + (size_t)count * size, 0, size);
        spread(out, (const uint8_t *)block, valid, slots, size, cursor->codes ? (uint64_t)cursor->entries : 0);
        return 0;
    }
    uint8_t *wide = malloc((size_t)(count + 1) * size);
    if (wide == NULL)
        return fail(cursor, NO_MEMORY);
    const int failed = read_values(cursor, wide, count);
    if (!failed)
        spread(out, wide, valid, slots, size, 0);
    free(wide);
    return failed;
}

/* Append `slots` values, of which those are there whose byte in `valid` is 1 (NULL: all). */
static int append_values(Cursor *cursor, const uint8_t *valid, int64_t slots, int64_t count) {
    const size_t size = slot_size(cursor);
    Vector *values = &cursor->values;
    if (count > 0 && count > values_left(cursor)) /* before memory is taken for them */
        return fail(cursor, VALUES_END);
    if (cursor->lists && slots > INT32_MAX - cursor->elements)
        return fail(cursor, TOO_MANY);
    if (reserve(cursor, values, slots + 1, size) != 0)
        return -1;
    if (values->used == 0 && cursor->physical == BYTE_ARRAY && !cursor->codes) { /* where the first string starts */
        memset(values->bytes, 0, size);
        values->used = size;
    }
    uint8_t *out = values->bytes + values->used;
    if (count < slots ? read_sparse(cursor, out, valid, slots, count) : read_values(cursor, out, count))
        return -1;
    values->used += (size_t)slots * size;
    /* Validity is kept from the first null on. */
    if (count < slots || cursor->nulls > 0) {
        Vector *bytes = &cursor->valid;
        if (cursor->nulls == 0) {
            if (reserve(cursor, bytes, cursor->elements, 1) != 0)
                return -1;
            memset(bytes->bytes, 1, (size_t)cursor->elements);
            bytes->used = (size_t)cursor->elements;
        }
        if (reserve(cursor, bytes, slots, 1) != 0)
            return -1;
        if (count < slots)
            memcpy(bytes->bytes + bytes->used, valid, (size_t)slots);
        else
            memset(bytes->bytes + bytes->used, 1, (size_t)slots);
        bytes->used += (size_t)slots;
        cursor->nulls += slots - count;
    }
    cursor->elements += slots;
    return 0;
}

/* ---- levels ------------------------------------------------------------------------------------------------------ */

static int64_t count_zeros(const uint8_t *bytes, int64_t count) {
    return count - count_ones(bytes, count);
}

static int advance_flat(Cursor *cursor, int64_t rows) {
    int64_t left = rows < cursor->slots ? rows : cursor->slots;
    if (cursor->max_def == 0) {
        cursor->slots -= left;
        return append_values(cursor, NULL, left, left);
    }
    while (left > 0) {
        int64_t some = runs_repeated(&cursor->defs, cursor->max_def, left);
        int64_t count = some;
        if (some > 0) {
            cursor->defs.left -= some;
        } else {
            some = left < BLOCK ? left : BLOCK;
            if (runs_read_bytes(&cursor->defs, cursor->def, some, cursor->max_def) != 0)
                return fail(cursor, LEVELS_END);
            count = count_ones(cursor->def, some);
        }
        if (append_values(cursor, cursor->def, some, count) != 0)
            return -1;
        cursor->slots -= some;
        left -= some;
    }
    return 0;
}

/* Move bytes down. With a distance of 16 or more, up to 15 bytes behind them are overwritten, too. */
static void move_down(uint8_t *to, const uint8_t *from, size_t length) {
    if (from - to < 16)
        memmove(to, from, length);
    else
        copy_wild(to, from, length);
}

/* Drop what lists have beyond `prefix` elements, of the elements from `first` on: the rest of the list that was open, and
 * the lists from `row` on. */
static void cut_lists(Cursor *cursor, int64_t row, int64_t first) {
    const size_t size = slot_size(cursor);
    uint8_t *values = cursor->values.bytes, *valid = cursor->nulls > 0 ? cursor->valid.bytes : NULL;
    int32_t *starts = (int32_t *)cursor->starts.bytes;
    const int64_t nulls = valid == NULL ? 0 : count_zeros(valid + first, cursor->elements - first);
    int64_t to = first, from = first;
    for (;; row++) {
        const int64_t stop = row < cursor->rows ? starts[row] : cursor->elements;
        const int64_t most = cursor->prefix - cursor->open, some = stop - from < most ? stop - from : most;
        if (to != from && some > 0) {
            move_down(values + (size_t)to * size, values + (size_t)from * size, (size_t)some * size);
            if (valid != NULL)
                memmove(valid + to, valid + from, (size_t)some);
        }
        to += some;
        cursor->open += some;
        if (row >= cursor->rows)
            break;
        starts[row] = (int32_t)to;
        from = stop;
        cursor->open = 0;
    }
    cursor->elements = to;
    cursor->values.used = (size_t)to * size;
    if (valid != NULL) {
        cursor->nulls += count_zeros(valid + first, to - first) - nulls;
        cursor->valid.used = (size_t)to;
    }
}

/* Keep that lists are not null, where that is kept: from the first null on. */
static int append_valid_lists(Cursor *cursor, int64_t count) {
    Vector *valid = &cursor->list_valid;
    if (cursor->null_lists == 0 || count == 0)
        return 0;
    if (reserve(cursor, valid, count, 1) != 0)
        return -1;
    memset(valid->bytes + valid->used, 1, (size_t)count);
    valid->used += (size_t)count;
    return 0;
}

/* Begin a list at an element. */
static int begin_list(Cursor *cursor, int64_t start, int is_null) {
    cursor->starts.used = (size_t)cursor->rows * sizeof(int32_t);
    if (reserve(cursor, &cursor->starts, 1, sizeof(int32_t)) != 0)
        return -1;
    ((int32_t *)cursor->starts.bytes)[cursor->rows] = (int32_t)start;
    if (is_null && cursor->null_lists == 0) {
        cursor->null_lists = 1;
        if (append_valid_lists(cursor, cursor->rows + 1) != 0)
            return -1;
        cursor->list_valid.bytes[cursor->rows] = 0;
    } else if (cursor->null_lists > 0) {
        if (append_valid_lists(cursor, 1) != 0)
            return -1;
        cursor->list_valid.bytes[cursor->rows] = !is_null;
        cursor->null_lists += is_null;
    }
    cursor->rows++;
    return 0;
}

/* Begin lists at the zeros of a packed run of repetition levels, `slots` of it, the first of which is element `base`.
 * Returns how many were used; fewer where the list after the last one begins. */
FAST static int64_t scan_starts(Cursor *cursor, int64_t base, int64_t slots, int64_t rows) {
    Runs *reps = &cursor->reps;
    int64_t used = 0;
    int32_t *starts = (int32_t *)cursor->starts.bytes;
    int64_t begun = cursor->rows;
    while (used < slots) {
        const uint64_t bit = reps->bit + (uint64_t)used;
        const int shift = (int)(bit & 7);
        int64_t some = slots - used < 64 - shift ? slots - used : 64 - shift;
        uint64_t word = ~(load_some(reps->bytes + (bit >> 3), reps->at) >> shift);
        if (some < 64)
            word &= ((uint64_t)1 << some) - 1;
        const int full = begun + some > rows && begun + __builtin_popcountll(word) > rows;
        if (full) { /* find the list after the last one */
            uint64_t rest = word;
            for (int64_t skipped = begun; skipped < rows; skipped++)
                rest &= rest - 1;
            some = __builtin_ctzll(rest);
            word &= ((uint64_t)1 << some) - 1;
        }
        const int64_t first = base + used;
        while (word) {
            starts[begun++] = (int32_t)(first + __builtin_ctzll(word));
            word &= word - 1;
        }
        used += some;
        if (full)
            break;
    }
    cursor->rows = begun;
    reps->bit += (uint64_t)used;
    reps->left -= used;
    return used;
}

/* Take elements where a run of definition levels says that all are there. Returns 1 where the list after the last one
 * begins, 0 if that was not reached, -1 on an error. */
static int advance_full_lists(Cursor *cursor, int64_t rows, int64_t slots) {
    Runs *reps = &cursor->reps;
    const int64_t before = cursor->rows, elements = cursor->elements;
    int64_t done = 0;
    int stop = 0;
    if (slots > INT32_MAX - cursor->elements)
        return fail(cursor, TOO_MANY);
    cursor->starts.used = (size_t)cursor->rows * sizeof(int32_t);
    if (reserve(cursor, &cursor->starts, rows - cursor->rows < slots ? rows - cursor->rows : slots, sizeof(int32_t)) != 0)
        return -1;
    while (done < slots && !stop) {
        if (reps->left == 0 && runs_next(reps) != 0)
            return fail(cursor, LEVELS_END);
        const int64_t some = reps->left < slots - done ? reps->left : slots - done, base = cursor->elements + done;
        int64_t used = some;
        if (reps->packed) {
            used = scan_starts(cursor, base, some, rows);
        } else {
            if (reps->value == 0) { /* each is a list of its own */
                used = rows - cursor->rows < some ? rows - cursor->rows : some;
                for (int64_t index = 0; index < used; index++)
                    ((int32_t *)cursor->starts.bytes)[cursor->rows++] = (int32_t)(base + index);
            }
            reps->left -= used;
        }
        stop = used < some;
        done += used;
    }
    cursor->defs.left -= done;
    cursor->slots -= done;
    if (append_values(cursor, NULL, done, done) != 0 || append_valid_lists(cursor, cursor->rows - before) != 0)
        return -1;
    if (cursor->prefix)
        cut_lists(cursor, before, elements);
    return stop;
}

static int advance_lists(Cursor *cursor, int64_t rows) {
    uint8_t valid[BLOCK];
    while (cursor->slots > 0) {
        if (cursor->level == cursor->ahead) {
            const int64_t run = cursor->rows == 0
                ? 0 : runs_repeated(&cursor->defs, cursor->max_def, cursor->slots);
            if (run > 0) {
                const int stopped = advance_full_lists(cursor, rows, run);
                if (stopped != 0)
                    return stopped < 0 ? -1 : 1;
                continue;
            }
            int64_t some = cursor->slots < BLOCK ? cursor->slots : BLOCK;
            if (cursor->rows == 0)
                some = 1; /* only the first list, so that the next ones can be read as a run */
            if (runs_read_bytes(&cursor->reps, cursor->rep, some, 1) != 0
                || runs_read_bytes(&cursor->defs, cursor->def, some, cursor->max_def) != 0)
                return fail(cursor, LEVELS_END);
            cursor->level = 0;
            cursor->ahead = (int)some;
        }
        const int64_t before = cursor->rows, first = cursor->elements;
        int64_t elements = 0, count = 0;
        int stop = 0, level = cursor->level;
        for (; level < cursor->ahead; level++) {
            const uint32_t def = cursor->def[level];
            if (cursor->rep[level] == 0) {
                if (cursor->rows == rows) {
                    stop = 1;
                    break;
                }
                if (begin_list(cursor, first + elements, def < cursor->listed) != 0)
                    return -1;
            } else if (cursor->rows == 0 || def < cursor->defined) {
                return fail(cursor, cursor->rows == 0 ? "its first level is inside a list"
                                                      : "a list goes on with a level that is no element's");
            }
            if (def >= cursor->defined) {
                valid[elements++] = def == cursor->max_def;
                count += def == cursor->max_def;
            }
        }
        cursor->slots -= level - cursor->level;
        cursor->level = level;
        if (append_values(cursor, valid, elements, count) != 0)
            return -1;
        if (cursor->prefix)
            cut_lists(cursor, before, first);
        if (stop)
            return 1;
    }
    return 0;
}

/* Whether there are so many rows; else the page has ended. -1 after an error. */
static int advance_rows(Cursor *cursor, int64_t rows) {
    if (cursor->lists)
        return advance_lists(cursor, rows);
    return advance_flat(cursor, rows - cursor->elements) != 0 ? -1 : cursor->elements == rows;
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

static void release(Py_buffer *view) {
    if (view->obj != NULL)
        PyBuffer_Release(view);
    memset(view, 0, sizeof *view);
}

/* Find the levels of a first version's page, each behind its size. */
static int open_levels(Cursor *cursor, Runs *runs, uint32_t width) {
    uint32_t size;
    if (cursor->end - cursor->at < 4)
        return fail(cursor, LEVELS_END);
    memcpy(&size, cursor->at, sizeof size);
    cursor->at += 4;
    if ((int64_t)size > cursor->end - cursor->at)
        return fail(cursor, LEVELS_END);
    runs_open(runs, cursor->at, cursor->at + size, width);
    cursor->at += size;
    return 0;
}

/* Decode the lengths of strings; what follows them are their bytes. */
static int open_strings(Cursor *cursor, int64_t **lengths, int64_t *count) {
    int32_t *short_ones = malloc(((size_t)cursor->slots + 1) * sizeof *short_ones);
    *lengths = malloc(((size_t)cursor->slots + 1) * sizeof **lengths);
    if (short_ones == NULL || *lengths == NULL) {
        free(short_ones);
        return fail(cursor, NO_MEMORY);
    }
    *count = decode_delta(cursor->at, cursor->end, (uint8_t *)short_ones, 4, cursor->slots, &cursor->at);
    int failed = *count < 0;
    for (int64_t index = 0; index < *count; index++) {
        (*lengths)[index] = short_ones[index];
        failed |= short_ones[index] < 0;
    }
    free(short_ones);
    return failed ? fail(cursor, "its lengths are not valid") : 0;
}

/* Build strings from the ones before them: of each, the length of what it shares and the bytes that are its own. */
static int join_strings(Cursor *cursor, const int64_t *shared, int64_t count) {
    int64_t total = 0, before = 0, own = 0;
    for (int64_t index = 0; index < count; index++) {
        if (shared[index] > before || cursor->lengths[index] > cursor->end - cursor->at - own)
            return fail(cursor, "its shared prefixes are not valid");
        own += cursor->lengths[index];
        before = cursor->lengths[index] + shared[index];
        total += before;
        if (total > MOST_BYTES)
            return fail(cursor, TOO_LONG);
    }
    uint8_t *out = cursor->decoded = malloc((size_t)total + 1);
    if (out == NULL)
        return fail(cursor, NO_MEMORY);
    const uint8_t *bytes = cursor->at, *previous = out;
    for (int64_t index = 0; index < count; index++) {
        uint8_t *start = out;
        memmove(out, previous, (size_t)shared[index]);
        out += shared[index];
        memcpy(out, bytes, (size_t)cursor->lengths[index]);
        bytes += cursor->lengths[index];
        out += cursor->lengths[index];
        cursor->lengths[index] += shared[index];
        previous = start;
    }
    cursor->at = cursor->decoded;
    cursor->end = out;
    return 0;
}

static int open_delta_strings(Cursor *cursor, int64_t **base) {
    int64_t *shared = NULL, count = 0, total = 0;
    if (cursor->encoding == DELTA_BYTES) {
        if (open_strings(cursor, &shared, &count) != 0) {
            free(shared);
            return -1;
        }
    }
    const int64_t prefixes = count;
    int failed = open_strings(cursor, &cursor->lengths, &count);
    *base = cursor->lengths;
    if (!failed && shared != NULL)
        failed = prefixes != count ? fail(cursor, "its prefixes and suffixes differ in number")
                                   : join_strings(cursor, shared, count);
    free(shared);
    for (int64_t index = 0; !failed && index < count; index++) {
        total += cursor->lengths[index];
        if (cursor->physical == FIXED_LEN_BYTE_ARRAY && cursor->lengths[index] != cursor->size)
            failed = fail(cursor, "a value has another length than its type");
    }
    if (!failed && total > cursor->end - cursor->at)
        failed = fail(cursor, VALUES_END);
    cursor->strings = count;
    if (!failed && cursor->physical == FIXED_LEN_BYTE_ARRAY) { /* values of one size need no lengths */
        cursor->end = cursor->at + total;
        cursor->lengths = NULL;
    }
    return failed;
}

static int open_values(Cursor *cursor, int64_t **base) {
    const int physical = cursor->physical;
    const int integer = physical == INT32 || physical == INT64;
    if (cursor->codes && cursor->encoding != RLE_DICTIONARY && cursor->encoding != PLAIN_DICTIONARY)
        return fail(cursor, "its values have no codes");
    switch (cursor->encoding) {
    case PLAIN:
        return 0;
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY:
        cursor->encoding = RLE_DICTIONARY;
        if (cursor->entries < 0)
            return fail(cursor, "it has no dictionary");
        if (cursor->at < cursor->end && *cursor->at > 32)
            return fail(cursor, "its codes have more than 32 bits");
        if (cursor->at < cursor->end)
            runs_open(&cursor->runs, cursor->at + 1, cursor->end, *cursor->at);
        else
            runs_open(&cursor->runs, cursor->end, cursor->end, 0);
        return 0;
    case RLE:
        if (physical != BOOLEAN)
            break;
        return open_levels(cursor, &cursor->runs, 1);
    case DELTA:
    case SPLIT:
        if (!integer && (cursor->encoding == DELTA || physical == BYTE_ARRAY || physical == BOOLEAN))
            break;
        const size_t room = cursor->encoding == DELTA ? ((size_t)cursor->slots + 1) * (size_t)cursor->size
                                                      : (size_t)(cursor->end - cursor->at) + 1;
        if ((cursor->decoded = malloc(room)) == NULL)
            return fail(cursor, NO_MEMORY);
        const int64_t count = cursor->encoding == DELTA
            ? decode_delta(cursor->at, cursor->end, cursor->decoded, cursor->size, cursor->slots, &cursor->at)
            : decode_split(cursor->at, cursor->end, cursor->decoded, cursor->size, cursor->slots);
        if (count < 0)
            return fail(cursor, "its values are not valid in their encoding");
        cursor->at = cursor->decoded;
        cursor->end = cursor->decoded + count * cursor->size;
        cursor->encoding = PLAIN;
        return 0;
    case DELTA_LENGTH:
    case DELTA_BYTES:
        if (physical != BYTE_ARRAY && (physical != FIXED_LEN_BYTE_ARRAY || cursor->encoding == DELTA_LENGTH))
            break;
        if (open_delta_strings(cursor, base) != 0)
            return -1;
        cursor->encoding = PLAIN;
        return 0;
    }
    return fail(cursor, "its encoding does not fit its type");
}

/* Find levels and values of a page. def_bytes, rep_bytes: of levels that stand alone, -1 where they precede the values. */
static int open_page(Cursor *cursor, int64_t rep_bytes, int64_t def_bytes, int64_t **base) {
    const uint32_t def_width = cursor->max_def > 1 ? 2 : 1;
    cursor->at = cursor->value_bytes.buf;
    cursor->end = cursor->at + cursor->value_bytes.len;
    if (def_bytes >= 0) {
        const uint8_t *levels = cursor->level_bytes.buf;
        const int64_t size = cursor->level_bytes.len;
        if (rep_bytes < 0 || rep_bytes > size || def_bytes > size - rep_bytes)
            return fail(cursor, LEVELS_END);
        runs_open(&cursor->reps, levels, levels + rep_bytes, 1);
        runs_open(&cursor->defs, levels + rep_bytes, levels + rep_bytes + def_bytes, def_width);
    } else {
        if (cursor->lists && open_levels(cursor, &cursor->reps, 1) != 0)
            return -1;
        if (cursor->max_def > 0 && open_levels(cursor, &cursor->defs, def_width) != 0)
            return -1;
    }
    return open_values(cursor, base);
}

static PyObject *raise(Cursor *cursor) {
    const char *message = cursor->error;
    cursor->error = NULL;
    if (message == NO_MEMORY || message == NULL)
        return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, message);
    return NULL;
}

static void close_page(Cursor *cursor) {
    release(&cursor->level_bytes);
    release(&cursor->value_bytes);
    free(cursor->decoded);
    cursor->decoded = NULL;
    cursor->lengths = NULL;
}

/* ---- methods ----------------------------------------------------------------------------------------------------- */

/* Call a method. A cursor is of one thread at a time, and of no further use after an error: its vectors may differ in
 * length. */
static PyObject *guarded(PyObject *self, PyObject *args, PyObject *(*method)(Cursor *, PyObject *)) {
    Cursor *cursor = (Cursor *)self;
    if (cursor->busy || cursor->failed) {
        PyErr_SetString(PyExc_ValueError, cursor->busy ? "a cursor is in use" : "a cursor has failed before");
        return NULL;
    }
    cursor->busy = 1;
    PyObject *result = method(cursor, args);
    cursor->busy = 0;
    cursor->failed = result == NULL;
    return result;
}

#define GUARDED(name, method)                                                                               \
    static PyObject *name(PyObject *self, PyObject *args) {                                                 \
        return guarded(self, args, method);                                                                 \
    }

/* Begin a page of so many levels, whose bytes are set. */
static int open_slots(Cursor *cursor, int64_t slots, int encoding, int64_t rep_bytes, int64_t def_bytes) {
    cursor->slots = slots;
    cursor->encoding = encoding;
    cursor->bit = cursor->strings = 0;
    cursor->ahead = cursor->level = 0;
    free(cursor->page_lengths);
    cursor->page_lengths = NULL;
    if (open_page(cursor, rep_bytes, def_bytes, &cursor->page_lengths) == 0)
        return 0;
    cursor->slots = 0;
    return -1;
}

static PyObject *begin_page(Cursor *cursor, PyObject *args) {
    PyObject *levels, *values;
    long long slots, rep_bytes, def_bytes;
    int encoding, failed;
    if (!PyArg_ParseTuple(args, "OOLiLL", &levels, &values, &slots, &encoding, &rep_bytes, &def_bytes))
        return NULL;
    if (cursor->slots > 0 || cursor->level < cursor->ahead) {
        PyErr_SetString(PyExc_ValueError, BEFORE_ITS_END);
        return NULL;
    }
    close_page(cursor);
    if ((levels != Py_None && PyObject_GetBuffer(levels, &cursor->level_bytes, PyBUF_SIMPLE) != 0)
        || PyObject_GetBuffer(values, &cursor->value_bytes, PyBUF_SIMPLE) != 0)
        return NULL;
    if (slots < 0 || slots > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the number of its values is out of range");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    failed = open_slots(cursor, slots, encoding, rep_bytes, levels == Py_None ? -1 : def_bytes);
    Py_END_ALLOW_THREADS
    if (failed)
        return raise(cursor);
    Py_RETURN_NONE;
}

/* Find the entries of a dictionary whose bytes are set. */
static int open_dictionary(Cursor *cursor, int64_t count) {
    const int64_t size = cursor->dictionary.len, most = cursor->codes == 2 ? UINT16_MAX + 1 : INT32_MAX;
    const uint8_t *start = cursor->dictionary.buf;
    if (cursor->entries >= 0)
        return fail(cursor, "it has two dictionaries");
    if (cursor->physical == BOOLEAN || count < 0 || count > most)
        return fail(cursor, "its dictionary is not valid");
    if (count > size / (cursor->physical == BYTE_ARRAY ? 4 : cursor->size ? cursor->size : 1))
        return fail(cursor, ENTRIES_END);
    if (cursor->physical == BYTE_ARRAY) {
        int64_t at = 0;
        if ((cursor->borders = malloc(((size_t)count * 2 + 1) * sizeof(int64_t))) == NULL)
            return fail(cursor, NO_MEMORY);
        for (int64_t entry = 0; entry < count; entry++) {
            uint32_t length;
            if (size - at < 4)
                return fail(cursor, ENTRIES_END);
            memcpy(&length, start + at, sizeof length);
            at += 4;
            if ((int64_t)length > size - at)
                return fail(cursor, ENTRIES_END);
            cursor->borders[2 * entry] = at;
            cursor->borders[2 * entry + 1] = at += (int64_t)length;
        }
    }
    cursor->entries = count;
    return 0;
}

/* Lay the strings of the dictionary end to end. */
static int join_entries(Cursor *cursor) {
    int64_t total = 0;
    cursor->longest = 0;
    for (int64_t entry = 0; entry < cursor->entries; entry++) {
        const int64_t length = cursor->borders[2 * entry + 1] - cursor->borders[2 * entry];
        cursor->longest = length > cursor->longest ? length : cursor->longest;
        total += length;
    }
    if (total > MOST_BYTES)
        return fail(cursor, TOO_LONG);
    Vector *ends = &cursor->entry_ends, *bytes = &cursor->entry_bytes;
    ends->used = bytes->used = 0;
    if (reserve(cursor, ends, cursor->entries + 1, 4) != 0 || reserve(cursor, bytes, total, 1) != 0)
        return -1;
    const uint8_t *start = cursor->dictionary.buf;
    ((int32_t *)ends->bytes)[0] = 0;
    for (int64_t entry = 0; entry < cursor->entries; entry++) {
        const int64_t first = cursor->borders[2 * entry], length = cursor->borders[2 * entry + 1] - first;
        memcpy(bytes->bytes + bytes->used, start + first, (size_t)length);
        bytes->used += (size_t)length;
        ((int32_t *)ends->bytes)[entry + 1] = (int32_t)bytes->used;
    }
    ends->used = ((size_t)cursor->entries + 1) * 4;
    uint8_t high = 0; /* the bits of all bytes: 128 is only in those of characters that are not ASCII */
    for (size_t at = 0; at < bytes->used; at++)
        high |= bytes->bytes[at];
    cursor->is_ascii = high < 128;
    cursor->has_strings = 1;
    return 0;
}

static PyObject *set_dictionary(Cursor *cursor, PyObject *args) {
    PyObject *bytes;
    long long count;
    if (!PyArg_ParseTuple(args, "OL", &bytes, &count))
        return NULL;
    if (cursor->entries < 0 && PyObject_GetBuffer(bytes, &cursor->dictionary, PyBUF_SIMPLE) != 0)
        return NULL;
    if (open_dictionary(cursor, count) != 0)
        return raise(cursor);
    Py_RETURN_NONE;
}

/* The offsets of the dictionary's strings, their bytes, the length of the longest, and whether all are ASCII. */
static PyObject *dictionary_strings(Cursor *cursor, PyObject *unused) {
    (void)unused;
    if (cursor->borders == NULL || cursor->entries < 0) {
        PyErr_SetString(PyExc_ValueError, "it has no dictionary of strings");
        return NULL;
    }
    if (!cursor->has_strings && join_entries(cursor) != 0)
        return raise(cursor);
    cursor->has_strings = 0; /* they are handed out */
    PyObject *ends = vector_take(&cursor->entry_ends), *bytes = vector_take(&cursor->entry_bytes);
    if (ends == NULL || bytes == NULL) {
        Py_XDECREF(ends);
        Py_XDECREF(bytes);
        return NULL;
    }
    return with_names(strings_type, Py_BuildValue("(NNLN)", ends, bytes, (long long)cursor->longest,
                                                  PyBool_FromLong(cursor->is_ascii)));
}

/* The bytes of a dictionary that the cursor has decompressed; None if there is none. */
static PyObject *dictionary_bytes(Cursor *cursor, PyObject *unused) {
    (void)unused;
    if (cursor->entries < 0 || cursor->unpacked_entries.bytes == NULL)
        return Py_NewRef(Py_None);
    PyObject *memory = vector_take(&cursor->unpacked_entries);
    if (memory != NULL && PyObject_GetBuffer(memory, &cursor->dictionary, PyBUF_SIMPLE) != 0)
        Py_CLEAR(memory);
    return memory;
}

/* advance(rows): whether there are so many rows; else the page has ended. */
static PyObject *advance(Cursor *cursor, PyObject *args) {
    long long rows;
    int stopped;
    if (!PyArg_ParseTuple(args, "L", &rows))
        return NULL;
    if (rows < (cursor->lists ? cursor->rows : cursor->elements)) {
        PyErr_SetString(PyExc_ValueError, "there are more rows already");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    stopped = advance_rows(cursor, rows);
    Py_END_ALLOW_THREADS
    if (stopped < 0)
        return raise(cursor);
    return PyBool_FromLong(stopped);
}

/* Bytes that are 0 or 1 as a bitmap; None for none. */
static PyObject *take_bits(Vector *bytes, int64_t count, int64_t zeros) {
    Vector bits = {0};
    if (zeros == 0)
        return Py_NewRef(Py_None);
    const size_t size = ((size_t)count + 7) / 8;
    if (vector_reserve(&bits, size) != 0 || vector_reserve(bytes, 8) != 0)
        return PyErr_NoMemory();
    memset(bytes->bytes + bytes->used, 0, 8);
    for (size_t index = 0; index < size; index++)
        bits.bytes[index] = (uint8_t)(load64(bytes->bytes + 8 * index) * UINT64_C(0x0102040810204080) >> 56);
    bits.used = size;
    bytes->used = 0;
    return vector_take(&bits);
}

static PyObject *take(Cursor *cursor, PyObject *unused) {
    PyObject *values, *bytes = NULL, *valid, *starts = NULL, *list_valid = NULL;
    const int64_t rows = cursor->lists ? cursor->rows : cursor->elements, elements = cursor->elements;
    const int64_t nulls = cursor->nulls, null_lists = cursor->null_lists;
    (void)unused;
    if (cursor->physical == BYTE_ARRAY && !cursor->codes && cursor->values.used == 0) {
        if (vector_reserve(&cursor->values, 4) != 0)
            return PyErr_NoMemory();
        memset(cursor->values.bytes, 0, 4);
        cursor->values.used = 4;
    }
    if (cursor->physical == BOOLEAN) {
        values = take_bits(&cursor->values, elements, 1);
    } else {
        values = vector_take(&cursor->values);
    }
    bytes = cursor->physical == BYTE_ARRAY && !cursor->codes ? vector_take(&cursor->bytes) : Py_NewRef(Py_None);
    valid = take_bits(&cursor->valid, elements, nulls);
    if (cursor->lists) {
        cursor->starts.used = (size_t)rows * sizeof(int32_t);
        if (vector_reserve(&cursor->starts, sizeof(int32_t)) == 0) {
            ((int32_t *)cursor->starts.bytes)[rows] = (int32_t)elements;
            cursor->starts.used += sizeof(int32_t);
            starts = vector_take(&cursor->starts);
        } else {
            PyErr_NoMemory();
        }
        list_valid = take_bits(&cursor->list_valid, rows, null_lists);
    } else {
        starts = Py_NewRef(Py_None);
        list_valid = Py_NewRef(Py_None);
    }
    cursor->rows = cursor->elements = cursor->nulls = cursor->null_lists = 0;
    if (values == NULL || bytes == NULL || valid == NULL || starts == NULL || list_valid == NULL) {
        Py_XDECREF(values);
        Py_XDECREF(bytes);
        Py_XDECREF(valid);
        Py_XDECREF(starts);
        Py_XDECREF(list_valid);
        return NULL;
    }
    return with_names(decoded_type, Py_BuildValue("(LLNNNLNNL)", (long long)rows, (long long)elements, values, bytes,
                                                  valid, (long long)nulls, starts, list_valid, (long long)null_lists));
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

#if defined(__SANITIZE_ADDRESS__)
#define COPIED 1
#else
#define COPIED 0 /* pages that are not compressed are read where they lie in the chunk */
#endif

enum { UNCOMPRESSED = 0, ZSTD, LZ4, HADOOP_LZ4, SNAPPY, CODECS };

static struct { /* of the shared library, if there is one */
    void *(*create)(void);
    size_t (*release)(void *);
    size_t (*decompress)(void *, void *, size_t, const void *, size_t);
} zstd;

static uint32_t crc_table[16][256];

static void make_crc_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int table = 1; table < 16; table++)
            crc_table[table][byte] = crc_table[table - 1][byte] >> 8 ^ crc_table[0][crc_table[table - 1][byte] & 255];
}

static uint32_t crc_of(const uint8_t *at, const uint8_t *end) {
    uint32_t crc = ~UINT32_C(0);
    for (; end - at >= 16; at += 16) {
        uint64_t low = load64(at) ^ crc, high = load64(at + 8);
        crc = 0;
        for (int byte = 0; byte < 8; byte++, low >>= 8, high >>= 8)
            crc ^= crc_table[15 - byte][low & 255] ^ crc_table[7 - byte][high & 255];
    }
    for (; at < end; at++)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *at) & 255];
    return ~crc;
}

/* Decompress to exactly `size` bytes. context: of zstd, made when it is needed. */
static int decompress(Cursor *cursor, void **context, const uint8_t *at, int64_t length, Vector *out, int64_t size) {
    const uint8_t *end = at + length;
    int64_t done = -1;
    out->used = 0;
    if (reserve(cursor, out, size, 1) != 0)
        return -1;
    switch (cursor->codec) {
    case UNCOMPRESSED:
        memcpy(out->bytes, at, (size_t)size);
        done = size;
        break;
    case ZSTD: /* its errors are sizes that no buffer has */
        if (*context == NULL && (*context = zstd.create()) == NULL)
            return fail(cursor, NO_MEMORY);
        done = (int64_t)zstd.decompress(*context, out->bytes, (size_t)size, at, (size_t)length);
        break;
    case HADOOP_LZ4: /* or a plain block, as some wrote */
        done = lz4_frames(at, end, out->bytes, (size_t)size);
        if (done == size)
            break;
        /* fall through */
    case LZ4:
        done = lz4_block(at, end, out->bytes, (size_t)size);
        break;
    case SNAPPY:
        done = snappy_block(at, end, out->bytes, (size_t)size);
    }
    out->used = (size_t)size;
#if defined(__SANITIZE_ADDRESS__) /* in memory of its own size, where a byte that is read behind it is seen */
    uint8_t *exact = malloc(size ? (size_t)size : 1);
    if (exact == NULL)
        return fail(cursor, NO_MEMORY);
    memcpy(exact, out->bytes, (size_t)size);
    free(out->bytes);
    out->bytes = exact;
    out->room = (size_t)size;
#endif
    return done == size ? 0 : fail(cursor, "a page does not decompress to its size");
}

/* Begin the next page. Returns its kind; -1 after an error, -2 if there is none. */
static int next_page(Cursor *cursor, void **context) {
    if (cursor->pages_left == 0)
        return -2;
    if (cursor->slots > 0 || cursor->level < cursor->ahead)
        return fail(cursor, BEFORE_ITS_END);
    const Page *page = cursor->pages++;
    cursor->pages_left--;
    const uint8_t *bytes = (const uint8_t *)cursor->chunk.buf + page->start;
    if (page->crc >= 0 && crc_of(bytes, bytes + page->compressed) != page->crc)
        return fail(cursor, "a page's checksum does not fit its bytes");
    if (page->kind == INDEX_PAGE)
        return INDEX_PAGE;
    const int is_new = page->kind == DATA_PAGE_V2, is_dictionary = page->kind == DICTIONARY_PAGE;
    const int64_t levels = is_new ? page->def_bytes + page->rep_bytes : 0;
    int64_t length = page->compressed - levels;
    const int64_t size = page->uncompressed - levels;
    const uint8_t *values = bytes + levels;
    if (!is_new || (page->is_compressed && (length || size))) { /* no bytes at all are not compressed */
        if (cursor->codec == UNCOMPRESSED && length != size)
            return fail(cursor, "a page has another size than its header says");
        if (cursor->codec != UNCOMPRESSED || is_dictionary || COPIED) {
            Vector *out = is_dictionary ? &cursor->unpacked_entries : &cursor->unpacked;
            if (decompress(cursor, context, values, length, out, size) != 0)
                return -1;
            values = out->bytes;
            length = size;
        }
    }
    if (is_dictionary) {
        if (page->encoding != PLAIN && page->encoding != PLAIN_DICTIONARY)
            return fail(cursor, "its dictionary has no plain values");
        if (cursor->entries < 0) {
            cursor->dictionary.buf = (void *)values;
            cursor->dictionary.len = (Py_ssize_t)length;
        }
        if (open_dictionary(cursor, page->values) != 0 || (cursor->physical == BYTE_ARRAY && join_entries(cursor) != 0))
            return -1;
        return DICTIONARY_PAGE;
    }
    close_page(cursor);
    cursor->level_bytes.buf = (void *)bytes;
    cursor->level_bytes.len = (Py_ssize_t)levels;
    cursor->value_bytes.buf = (void *)values;
    cursor->value_bytes.len = (Py_ssize_t)length;
    const int64_t def_bytes = is_new ? page->def_bytes : -1;
    return open_slots(cursor, page->values, (int)page->encoding, page->rep_bytes, def_bytes) == 0 ? (int)page->kind : -1;
}

/* Take the pages up to the dictionary, if there is one. */
static int open_chunk(Cursor *cursor, void **context) {
    int64_t page = 0;
    while (page < cursor->pages_left && cursor->pages[page].kind != DICTIONARY_PAGE)
        page++;
    if (page == cursor->pages_left)
        return 0;
    for (int kind = INDEX_PAGE; kind != DICTIONARY_PAGE;)
        if ((kind = next_page(cursor, context)) < 0)
            return -1;
    return 1;
}

/* Decode until there are so many rows. Returns 1 if there are, 0 if the pages end before, -1 after an error. */
static int read_rows(Cursor *cursor, int64_t rows, void **context) {
    int stopped;
    while ((stopped = advance_rows(cursor, rows)) == 0) {
        const int kind = next_page(cursor, context);
        if (kind < 0)
            return kind == -2 ? 0 : -1;
    }
    return stopped;
}

/* source(chunk, pages, codec): give it the chunk, and the pages as `page_table` returns them. */
static PyObject *set_source(Cursor *cursor, PyObject *args) {
    PyObject *chunk, *table;
    Py_buffer view;
    int codec;
    if (!PyArg_ParseTuple(args, "OOi", &chunk, &table, &codec))
        return NULL;
    if (cursor->chunk.obj != NULL || codec < 0 || codec >= CODECS || (codec == ZSTD && zstd.create == NULL)) {
        PyErr_SetString(PyExc_ValueError, "a cursor does not read such chunks");
        return NULL;
    }
    if (PyObject_GetBuffer(table, &view, PyBUF_SIMPLE) != 0)
        return NULL;
    if (PyObject_GetBuffer(chunk, &cursor->chunk, PyBUF_SIMPLE) != 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    const size_t count = (size_t)view.len / sizeof(Page);
    Page *pages = cursor->table = malloc((count ? count : 1) * sizeof(Page));
    int failed = pages == NULL || (size_t)view.len % sizeof(Page) != 0;
    if (!failed)
        memcpy(pages, view.buf, count * sizeof(Page));
    PyBuffer_Release(&view);
    if (pages == NULL)
        return PyErr_NoMemory();
    for (size_t index = 0; index < count && !failed; index++) {
        const Page *page = &pages[index];
        const int64_t size = cursor->chunk.len;
        failed = page->kind < DATA_PAGE || page->kind > DATA_PAGE_V2 || page->compressed < 0 || page->compressed > size
            || page->start < 0 || page->start > size - page->compressed || page->uncompressed < 0
            || page->uncompressed > INT32_MAX;
        if (!failed && page->kind != INDEX_PAGE)
            failed = page->values < 0 || page->values > INT32_MAX || page->encoding < 0 || page->encoding > INT32_MAX;
        if (!failed && page->kind == DATA_PAGE_V2)
            failed = page->def_bytes < 0 || page->rep_bytes < 0 || page->def_bytes > page->compressed - page->rep_bytes
                || page->def_bytes > page->uncompressed - page->rep_bytes;
    }
    if (failed) {
        PyErr_SetString(PyExc_ValueError, "a chunk's pages are not where its table says");
        return NULL;
    }
    cursor->pages = pages;
    cursor->pages_left = (int64_t)count;
    cursor->codec = codec;
    Py_RETURN_NONE;
}

GUARDED(cursor_source, set_source)
GUARDED(cursor_dictionary_bytes, dictionary_bytes)
GUARDED(cursor_begin, begin_page)
GUARDED(cursor_dictionary, set_dictionary)
GUARDED(cursor_dictionary_strings, dictionary_strings)
GUARDED(cursor_advance, advance)
GUARDED(cursor_take, take)

static PyObject *cursor_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    int physical, size, lists, max_def, codes, prefix;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "iiiiii", &physical, &size, &lists, &max_def, &codes, &prefix))
        return NULL;
    const int fits = physical == BOOLEAN ? size == 1
        : physical == INT32 || physical == FLOAT ? size == 4
        : physical == INT64 || physical == DOUBLE ? size == 8
        : physical == BYTE_ARRAY ? size == 0
        : physical == FIXED_LEN_BYTE_ARRAY && size > 0 && size <= 65536;
    const int cuts = prefix == 0 || (prefix > 0 && lists && (codes || physical != BYTE_ARRAY));
    if (!fits || !cuts || (codes != 0 && codes != 2 && codes != 4) || lists < 0
        || (lists ? lists > 2 || max_def < lists || max_def > lists + 1 : max_def < 0 || max_def > 1)) {
        PyErr_SetString(PyExc_ValueError, "a cursor does not read such columns");
        return NULL;
    }
    Cursor *cursor = (Cursor *)PyType_GenericAlloc(type, 0);
    if (cursor == NULL)
        return NULL;
    cursor->physical = physical;
    cursor->size = size;
    cursor->lists = lists != 0;
    cursor->max_def = (uint32_t)max_def;
    cursor->defined = (uint32_t)lists;     /* 1 of lists that are never null, 2 of others */
    cursor->listed = (uint32_t)lists - 1;
    cursor->codes = codes;
    cursor->prefix = prefix;
    cursor->entries = -1;
    return (PyObject *)cursor;
}

static void cursor_dealloc(PyObject *self) {
    Cursor *cursor = (Cursor *)self;
    PyTypeObject *type = Py_TYPE(self);
    Vector *vectors[] = {&cursor->values, &cursor->bytes, &cursor->valid, &cursor->starts, &cursor->list_valid,
                         &cursor->entry_ends, &cursor->entry_bytes, &cursor->unpacked, &cursor->unpacked_entries};
    close_page(cursor);
    release(&cursor->dictionary);
    release(&cursor->chunk);
    free(cursor->table);
    free(cursor->page_lengths);
    free(cursor->borders);
    for (size_t index = 0; index < sizeof vectors / sizeof *vectors; index++)
        free(vectors[index]->bytes);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

/* The bit of an encoding; that of `OTHER_ENCODING` for all that have a larger number. */
static int64_t encoding_bit(int64_t encoding) {
    return INT64_C(1) << (encoding < OTHER_ENCODING ? encoding : OTHER_ENCODING);
}

/* page_table(chunk, values): the pages of a column chunk, until they have so many values; as bits, the encodings of values
 * in data pages, and of levels in those of the first version; and how many values dictionaries have. */
static PyObject *page_table(PyObject *module, PyObject *args) {
    PyObject *chunk;
    Py_buffer view;
    long long values;
    (void)module;
    if (!PyArg_ParseTuple(args, "OL", &chunk, &values) || PyObject_GetBuffer(chunk, &view, PyBUF_SIMPLE) != 0)
        return NULL;
    Vector pages = {0};
    const uint8_t *start = view.buf;
    Thrift thrift = {start, start + view.len};
    const char *error = NULL;
    int64_t found = 0, encodings = 0, def_encodings = 0, rep_encodings = 0, entries = 0;
    while (found < values && error == NULL) {
        Page page;
        if (thrift.at == thrift.end) {
            error = "its pages hold fewer values than its footer says";
        } else if (read_header(&thrift, &page) != 0 || thrift_forward(&thrift, (uint64_t)page.compressed) != 0) {
            error = "a page's header is not valid";
        } else if (vector_reserve(&pages, sizeof page) != 0) {
            error = NO_MEMORY;
        } else {
            page.start = thrift.at - start - page.compressed;
            memcpy(pages.bytes + pages.used, &page, sizeof page);
            pages.used += sizeof page;
            if (page.kind == DATA_PAGE || page.kind == DATA_PAGE_V2) {
                found += page.values;
                encodings |= encoding_bit(page.encoding);
            }
            if (page.kind == DATA_PAGE) {
                def_encodings |= encoding_bit(page.def_encoding);
                rep_encodings |= encoding_bit(page.rep_encoding);
            }
            entries += page.kind == DICTIONARY_PAGE ? page.values : 0;
        }
    }
    if (error == NULL && found > values)
        error = "its pages hold more values than its footer says";
    PyBuffer_Release(&view);
    PyObject *result = NULL;
    if (error == NO_MEMORY)
        PyErr_NoMemory();
    else if (error != NULL)
        PyErr_SetString(PyExc_ValueError, error);
    else
        result = vector_take(&pages);
    free(pages.bytes);
    if (result == NULL)
        return NULL;
    return with_names(table_type, Py_BuildValue("(NLLLL)", result, (long long)encodings, (long long)def_encodings,
                                                (long long)rep_encodings, (long long)entries));
}

static PyObject *crc32(PyObject *module, PyObject *bytes) {
    Py_buffer view;
    uint32_t crc;
    (void)module;
    if (PyObject_GetBuffer(bytes, &view, PyBUF_SIMPLE) != 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    crc = crc_of(view.buf, (const uint8_t *)view.buf + view.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

/* look_up(codes, size, valid, offset, count, truths): bytes that are 0 or 1, the truth of each code of 2 or 4 bytes, from
 * the one at `offset` on. valid: a bitmap, or None. truths: of codes; the last one is that of null. */
static PyObject *look_up(PyObject *module, PyObject *args) {
    PyObject *codes, *valid, *truths, *result = NULL;
    Py_buffer views[3] = {{0}};
    long long offset, count;
    int size, failed;
    (void)module;
    if (!PyArg_ParseTuple(args, "OiOLLO", &codes, &size, &valid, &offset, &count, &truths))
        return NULL;
    Vector out = {0};
    if (PyObject_GetBuffer(codes, &views[0], PyBUF_SIMPLE) != 0 || PyObject_GetBuffer(truths, &views[1], PyBUF_SIMPLE) != 0
        || (valid != Py_None && PyObject_GetBuffer(valid, &views[2], PyBUF_SIMPLE) != 0))
        goto done;
    if ((size != 2 && size != 4) || offset < 0 || count < 0 || offset > views[0].len / size
        || count > views[0].len / size - offset || (uintptr_t)views[0].buf % (unsigned)size != 0 || views[1].len < 1
        || (valid != Py_None && (offset + count + 7) / 8 > views[2].len)) {
        PyErr_SetString(PyExc_ValueError, "there are fewer codes than are to be looked up");
        goto done;
    }
    if (vector_reserve(&out, (size_t)count) != 0) {
        PyErr_NoMemory();
        goto done;
    }
    const uint8_t *first = (const uint8_t *)views[0].buf + (size_t)offset * (size_t)size;
    Py_BEGIN_ALLOW_THREADS
    Truths table = truths_of(views[1].buf, views[1].len);
    failed = size == 2 ? look_up_2((const uint16_t *)first, count, &table, out.bytes)
                       : look_up_4((const uint32_t *)first, count, &table, out.bytes);
    if (!failed && valid != Py_None)
        set_nulls(out.bytes, count, views[2].buf, (const uint8_t *)views[2].buf + views[2].len, offset, table.null);
    out.used = (size_t)count;
    Py_END_ALLOW_THREADS
    if (failed)
        PyErr_SetString(PyExc_ValueError, "a code is not in its dictionary");
    else
        result = vector_take(&out);
done:
    free(out.bytes);
    for (int index = 0; index < 3; index++)
        release(&views[index]);
    return result;
}

/* use_zstd(create, release, decompress): the addresses of these functions of its library. */
static PyObject *use_zstd(PyObject *module, PyObject *args) {
    unsigned long long create, release_it, decompress;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKK", &create, &release_it, &decompress))
        return NULL;
    zstd.create = (void *(*)(void))(uintptr_t)create;
    zstd.release = (size_t(*)(void *))(uintptr_t)release_it;
    zstd.decompress = (size_t(*)(void *, void *, size_t, const void *, size_t))(uintptr_t)decompress;
    Py_RETURN_NONE;
}

static PyObject *overwrite_freed(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    overwrites = 1;
    Py_RETURN_NONE;
}

/* Whether a cursor may read; it is busy then. */
static int claim(PyObject *object, int64_t rows) {
    Cursor *cursor = (Cursor *)object;
    const char *error = NULL;
    if (!Py_IS_TYPE(object, cursor_type))
        error = "no cursor";
    else if (cursor->busy || cursor->failed)
        error = cursor->busy ? "a cursor is in use" : "a cursor has failed before";
    else if (cursor->table == NULL)
        error = "a cursor has no chunk";
    else if (rows >= 0 && rows < (cursor->lists ? cursor->rows : cursor->elements))
        error = "there are more rows already";
    if (error != NULL) {
        PyErr_SetString(PyExc_ValueError, error);
        return -1;
    }
    cursor->busy = 1;
    return 0;
}

/* read_chunks(cursors, rows): decode each until there are so many rows; -1: take the pages up to the dictionaries. For
 * each: whether there are, or there is a dictionary; a text is an error, None no memory. */
static PyObject *read_chunks(PyObject *module, PyObject *args) {
    PyObject *cursors;
    long long rows;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!L", &PyTuple_Type, &cursors, &rows))
        return NULL;
    const Py_ssize_t count = PyTuple_Size(cursors);
    Py_ssize_t claimed = 0;
    int *done = PyMem_Calloc((size_t)(count ? count : 1), sizeof(int));
    if (done == NULL)
        return PyErr_NoMemory();
    while (claimed < count && claim(PyTuple_GetItem(cursors, claimed), rows) == 0)
        claimed++;
    Cursor **all = claimed < count ? NULL : PyMem_Calloc((size_t)(count ? count : 1), sizeof(Cursor *));
    PyObject *result = all == NULL ? NULL : PyTuple_New(count);
    if (result != NULL) {
        for (Py_ssize_t index = 0; index < count; index++)
            all[index] = (Cursor *)PyTuple_GetItem(cursors, index);
        Py_BEGIN_ALLOW_THREADS
        void *context = NULL;
        for (Py_ssize_t index = 0; index < count; index++)
            done[index] = rows < 0 ? open_chunk(all[index], &context) : read_rows(all[index], rows, &context);
        if (context != NULL)
            zstd.release(context);
        Py_END_ALLOW_THREADS
    }
    for (Py_ssize_t index = 0; index < claimed; index++) {
        Cursor *cursor = (Cursor *)PyTuple_GetItem(cursors, index);
        cursor->busy = 0;
        cursor->failed = done[index] < 0;
        if (result == NULL)
            continue;
        PyObject *item = done[index] >= 0 ? PyBool_FromLong(done[index])
            : cursor->error == NO_MEMORY || cursor->error == NULL ? Py_NewRef(Py_None)
                                                                  : PyUnicode_FromString(cursor->error);
        cursor->error = NULL;
        if (item == NULL || PyTuple_SetItem(result, index, item) != 0)
            Py_CLEAR(result);
    }
    if (all == NULL && !PyErr_Occurred())
        PyErr_NoMemory();
    PyMem_Free(all);
    PyMem_Free(done);
    return result;
}

static PyMethodDef cursor_methods[] = {
    {"dictionary", cursor_dictionary, METH_VARARGS, "dictionary(bytes, count): set the dictionary."},
    {"source", cursor_source, METH_VARARGS, "source(chunk, pages, codec): read a chunk's pages itself."},
    {"dictionary_bytes", cursor_dictionary_bytes, METH_NOARGS, "The bytes of a dictionary that it decompressed."},
    {"dictionary_strings", cursor_dictionary_strings, METH_NOARGS, "Return the offsets and bytes of its strings."},
    {"begin", cursor_begin, METH_VARARGS, "begin(levels, values, count, encoding, rep_bytes, def_bytes): next page."},
    {"advance", cursor_advance, METH_VARARGS, "advance(rows): decode until there are so many rows."},
    {"take", cursor_take, METH_NOARGS, "Return the rows decoded so far, and begin with none."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_dealloc, memory_dealloc}, {Py_bf_getbuffer, memory_buffer}, {0, NULL},
};
static PyType_Slot cursor_slots[] = {
    {Py_tp_new, cursor_new}, {Py_tp_dealloc, cursor_dealloc}, {Py_tp_methods, cursor_methods}, {0, NULL},
};
static PyType_Spec memory_spec = {
    "feedline.native._parquet.Memory", sizeof(Memory), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, memory_slots,
};
static PyType_Spec cursor_spec = {
    "feedline.native._parquet.Cursor", sizeof(Cursor), 0, Py_TPFLAGS_DEFAULT, cursor_slots,
};

static PyMethodDef methods[] = {
    {"page_table", page_table, METH_VARARGS, "page_table(chunk, values): the headers of a column chunk's pages."},
    {"read_chunks", read_chunks, METH_VARARGS, "read_chunks(cursors, rows): decode until there are so many rows."},
    {"look_up", look_up, METH_VARARGS, "look_up(codes, size, valid, offset, count, truths): the truth of each code."},
    {"overwrite_freed", overwrite_freed, METH_NOARGS, "overwrite_freed(): overwrite bytes before they are freed."},
    {"use_zstd", use_zstd, METH_VARARGS, "use_zstd(create, release, decompress): addresses of its functions."},
    {"crc32", crc32, METH_O, "crc32(bytes): the checksum of a page."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_parquet", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__parquet(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    make_crc_table();
    memory_type = (PyTypeObject *)PyType_FromSpec(&memory_spec);
    cursor_type = (PyTypeObject *)PyType_FromSpec(&cursor_spec);
    decoded_type = PyStructSequence_NewType(&decoded_names);
    strings_type = PyStructSequence_NewType(&strings_names);
    table_type = PyStructSequence_NewType(&table_names);
    if (memory_type == NULL || cursor_type == NULL || decoded_type == NULL || strings_type == NULL || table_type == NULL
        || PyModule_AddIntConstant(module, "VERSION", 7) != 0
        || PyModule_AddObjectRef(module, "Cursor", (PyObject *)cursor_type) != 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
