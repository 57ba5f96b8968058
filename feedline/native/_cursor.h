/* A position in a column chunk: its dictionary, its page, and the rows so far.
 *
 * A function that fails sets `error` and returns -1; the cursor is of no use then.
 */

#ifndef FEEDLINE_CURSOR_H
#define FEEDLINE_CURSOR_H

#include "_headers.h"
#include "_vectors.h"

#define BLOCK 1024          /* levels and codes that are decoded at once, in the first cache */
#define WORD 64             /* levels that are looked at at once, as the bits of a word */
#define MOST_EXPECTED (24 << 20) /* bytes of values that are made room for before there are any */
#define MOST_BYTES INT32_MAX /* of strings, which 32-bit offsets count */

enum { BOOLEAN = 0, INT32 = 1, INT64 = 2, FLOAT = 4, DOUBLE = 5, BYTE_ARRAY = 6, FIXED_LEN_BYTE_ARRAY = 7 };
enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, DELTA = 5, DELTA_LENGTH = 6, DELTA_BYTES = 7, RLE_DICTIONARY = 8, SPLIT = 9 };

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
    uint8_t rep[BLOCK + WORD], def[BLOCK + WORD];
    int ahead, level;

    /* What is handed out of a chunk of so many rows: integers of fewer bytes (0: as they are), offsets of 64 bits. Whether
     * there are more values than rows. */
    int64_t chunk_rows;
    int has_more, narrow, long_strings, long_lists;

    /* Where runs of equal rows start, a byte of 0 or 1 for each row of the chunk, if only those are delivered; and how
     * many rows were taken. */
    Py_buffer flags;
    int64_t taken;

    /* The rows so far. */
    int64_t rows, elements;       /* lists begun; their elements, or the rows of a flat column */
    int64_t passed;               /* rows that are not delivered */
    int64_t open;                 /* elements of the last list, if `prefix` limits them */
    int64_t nulls, null_lists;
    Vector values, bytes, valid, starts, list_valid;
} Cursor;

static PyTypeObject *cursor_type;

/* The rows so far, delivered or not. */
static int64_t rows_seen(const Cursor *cursor) {
    return cursor->passed + (cursor->lists ? cursor->rows : cursor->elements);
}

/* The most rows that there may be. */
static int64_t most_rows(const Cursor *cursor) {
    return cursor->flags.obj == NULL ? INT64_MAX : (int64_t)cursor->flags.len - cursor->taken;
}

/* The flags of the rows that follow. */
static const uint8_t *flags_ahead(const Cursor *cursor) {
    return (const uint8_t *)cursor->flags.buf + cursor->taken + rows_seen(cursor);
}

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

/* The next rows are counted from 0. */
static void begin_rows(Cursor *cursor) {
    cursor->rows = cursor->elements = cursor->nulls = cursor->null_lists = cursor->passed = 0;
}

static int put_offset(Vector *offsets, int32_t offset) {
    if (vector_reserve(offsets, sizeof offset) != 0)
        return -1;
    memcpy(offsets->bytes + offsets->used, &offset, sizeof offset);
    offsets->used += sizeof offset;
    return 0;
}

/* Add the end of the last list to the lists' starts. */
static int end_lists(Cursor *cursor) {
    cursor->starts.used = (size_t)cursor->rows * sizeof(int32_t);
    return put_offset(&cursor->starts, (int32_t)cursor->elements);
}

static int reserve(Cursor *cursor, Vector *vector, int64_t count, size_t size) {
    return vector_reserve(vector, (size_t)count * size) == 0 ? 0 : fail(cursor, NO_MEMORY);
}

#endif
