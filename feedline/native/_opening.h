/* Open column chunks: find their pages, decide whether and how they are decoded here, and take their dictionaries, of many
 * chunks in one call. */

#ifndef FEEDLINE_OPENING_H
#define FEEDLINE_OPENING_H

#include "_chunks.h"

#define OTHER_ENCODING 62 /* a bit for all encodings with larger numbers */
#define BIT(number) (INT64_C(1) << (number))
/* Encodings of values: all but BIT_PACKED, which is deprecated. */
#define KNOWN_VALUES (BIT(PLAIN) | BIT(PLAIN_DICTIONARY) | BIT(RLE) | BIT(DELTA) | BIT(DELTA_LENGTH) | BIT(DELTA_BYTES) \
                      | BIT(RLE_DICTIONARY) | BIT(SPLIT))
#define CODED_VALUES (BIT(PLAIN_DICTIONARY) | BIT(RLE_DICTIONARY))
/* A dictionary is worth its codes while it has less than this part of the chunk's values: what is computed on it is
 * computed that much less often, and gathered once. */
#define WORTH_CODES 2
#define WORTH_CUTTING 2 /* times as long are lists on average as what is needed of them: of shorter ones, all is delivered */
#define MANY 65536      /* codes of 16 bits leave one number for a null, which is one entry more */

/* How a column is stored, and handed out: see `ColumnKind`. */
typedef struct {
    int physical, size, lists, max_def, narrow, long_strings, long_lists;
} Layout;

/* What a chunk's pages have in common; see `PageTable`. */
typedef struct {
    int64_t kinds, encodings, def_encodings, rep_encodings, entries;
} Summary;

static Cursor *new_cursor(PyTypeObject *type, const Layout *layout, int codes, int prefix) {
    const int physical = layout->physical, size = layout->size, lists = layout->lists, max_def = layout->max_def;
    const int fits = physical == BOOLEAN ? size == 1
        : physical == INT32 || physical == FLOAT ? size == 4
        : physical == INT64 || physical == DOUBLE ? size == 8
        : physical == BYTE_ARRAY ? size == 0
        : physical == FIXED_LEN_BYTE_ARRAY && size > 0 && size <= 65536;
    const int cuts = prefix == 0 || (prefix > 0 && lists && (codes || physical != BYTE_ARRAY));
    const int shortens = layout->narrow == 0 || (layout->narrow > 0 && layout->narrow <= 2 && physical == INT32);
    if (!fits || !cuts || !shortens || (codes != 0 && codes != 2 && codes != 4) || lists < 0
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
    cursor->narrow = layout->narrow;
    cursor->long_strings = layout->long_strings;
    cursor->long_lists = layout->long_lists;
    cursor->entries = -1;
    return cursor;
}

/* The bit of an encoding; that of `OTHER_ENCODING` for all that have a larger number. */
static int64_t encoding_bit(int64_t encoding) {
    return BIT(encoding < OTHER_ENCODING ? encoding : OTHER_ENCODING);
}

/* Append a chunk's pages, which are all of its bytes and hold so many values. Returns what is wrong, or NULL. */
static const char *find_pages(const uint8_t *start, int64_t size, int64_t values, Vector *pages, Summary *summary) {
    Thrift thrift = {start, values == 0 ? start : start + size}; /* without values, offsets may be unset */
    int64_t found = 0;
    while (thrift.at < thrift.end) {
        Page page;
        if (read_header(&thrift, &page) != 0 || thrift_forward(&thrift, (uint64_t)page.compressed) != 0)
            return "a page's header is not valid";
        if (page.kind == DICTIONARY_PAGE && summary->kinds != 0)
            return "its dictionary is not its first page";
        if (vector_reserve(pages, sizeof page) != 0)
            return NO_MEMORY;
        page.start = thrift.at - start - page.compressed;
        memcpy(pages->bytes + pages->used, &page, sizeof page);
        pages->used += sizeof page;
        summary->kinds |= BIT(page.kind);
        if (page.kind == DICTIONARY_PAGE) {
            summary->entries = page.values;
        } else {
            found += page.values;
            summary->encodings |= encoding_bit(page.encoding);
        }
        if (page.kind == DATA_PAGE) {
            summary->def_encodings |= encoding_bit(page.def_encoding);
            summary->rep_encodings |= encoding_bit(page.rep_encoding);
        }
    }
    return found == values ? NULL
        : found < values ? "its pages hold fewer values than its footer says"
                         : "its pages hold more values than its footer says";
}

/* A chunk to open. refused: kinds of pages, as bits, that are not read here. */
typedef struct {
    Cursor *cursor;
    Vector pages;
    Summary summary;
    long long values, refused;
    int wants_codes, prefix, codec, is_open;
} Opening;

/* Whether a chunk is decoded here: then its cursor is ready, and has its dictionary if it finds its pages itself. Returns
 * -1 without memory. */
static int open_one(Opening *opening, void **context) {
    Cursor *cursor = opening->cursor;
    Summary *summary = &opening->summary;
    const char *error = find_pages(cursor->chunk.buf, cursor->chunk.len, opening->values, &opening->pages, summary);
    if (error != NULL)
        return error == NO_MEMORY ? -1 : 0;
    if (summary->encodings & ~KNOWN_VALUES || (cursor->max_def && summary->def_encodings & ~BIT(RLE))
        || (cursor->lists && summary->rep_encodings & ~BIT(RLE)) || summary->kinds & opening->refused)
        return 0;
    if (opening->wants_codes && !(summary->encodings & ~CODED_VALUES) && summary->entries > 0
        && WORTH_CODES * summary->entries < opening->values)
        cursor->codes = summary->entries < MANY ? 2 : 4;
    /* Strings are checked to be UTF-8 in all rows, so they are all delivered. */
    const int is_deliverable = cursor->lists && (cursor->size > 0 || cursor->codes);
    const int64_t most = WORTH_CUTTING * (int64_t)opening->prefix; /* values > most * rows: without an overflow */
    if (is_deliverable && most > 0 && opening->values > 0 && cursor->chunk_rows <= (opening->values - 1) / most)
        cursor->prefix = opening->prefix;
    cursor->has_more = !cursor->lists && opening->values > cursor->chunk_rows;
    if (opening->codec < 0)
        return 1;
    cursor->codec = opening->codec;
    cursor->pages_left = (int64_t)(opening->pages.used / sizeof(Page));
    if (opening->pages.bytes == NULL && vector_reserve(&opening->pages, 0) != 0)
        return -1;
    cursor->table = cursor->pages = (Page *)vector_move(&opening->pages).bytes;
    if (open_chunk(cursor, context) >= 0)
        return 1;
    return cursor->error == NO_MEMORY ? -1 : 0; /* else pyarrow says what is wrong */
}

/* Read a request into a cursor that is new. */
static int read_request(PyObject *request, Opening *opening) {
    Layout layout;
    PyObject *content;
    long long offset, size, rows;
    if (!PyArg_ParseTuple(request, "OLLLLipiL(iiiiiii)", &content, &offset, &size, &opening->values, &rows, &opening->codec,
                          &opening->wants_codes, &opening->prefix, &opening->refused, &layout.physical, &layout.size,
                          &layout.lists, &layout.max_def, &layout.narrow, &layout.long_strings, &layout.long_lists)
        || (opening->cursor = new_cursor(cursor_type, &layout, 0, 0)) == NULL
        || PyObject_GetBuffer(content, &opening->cursor->chunk, PyBUF_SIMPLE) != 0)
        return -1;
    Py_buffer *chunk = &opening->cursor->chunk;
    if (offset < 0 || size < 0 || offset > chunk->len || size > chunk->len - offset || rows < 0 || opening->prefix < 0
        || opening->codec >= CODECS || (opening->codec == ZSTD && zstd.create == NULL)) {
        PyErr_SetString(PyExc_ValueError, "a cursor does not read such chunks");
        return -1;
    }
    chunk->buf = (uint8_t *)chunk->buf + offset;
    chunk->len = (Py_ssize_t)size;
    opening->cursor->chunk_rows = rows;
    return 0;
}

/* What became of a request: None for pyarrow, or the cursor, its dictionary's entries, the bytes of its codes, and the
 * pages of one that does not find them itself. */
static PyObject *result_of(Opening *opening) {
    if (!opening->is_open)
        return Py_NewRef(Py_None);
    PyObject *pages = opening->codec < 0 ? vector_take(&opening->pages) : Py_NewRef(Py_None);
    if (pages == NULL)
        return NULL;
    return Py_BuildValue("(OLiN)", opening->cursor, (long long)opening->summary.entries, opening->cursor->codes, pages);
}

/* open_chunks(requests): for each, see `read_request`, what became of it. */
static PyObject *open_chunks(PyObject *module, PyObject *requests) {
    PyObject *result = NULL;
    int is_short = 0;
    (void)module;
    if (!PyList_Check(requests)) {
        PyErr_SetString(PyExc_TypeError, "the requests are no list");
        return NULL;
    }
    const Py_ssize_t count = PyList_Size(requests);
    Opening *openings = calloc((size_t)count + 1, sizeof *openings);
    if (openings == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t index = 0; index < count; index++)
        if (read_request(PyList_GetItem(requests, index), &openings[index]) != 0)
            goto done;
    Py_BEGIN_ALLOW_THREADS
    void *context = NULL;
    for (Py_ssize_t index = 0; index < count && !is_short; index++) {
        openings[index].is_open = open_one(&openings[index], &context);
        is_short = openings[index].is_open < 0;
    }
    if (context != NULL)
        zstd.release(context);
    Py_END_ALLOW_THREADS
    if (is_short) {
        PyErr_NoMemory();
        goto done;
    }
    result = PyList_New(count);
    for (Py_ssize_t index = 0; result != NULL && index < count; index++) {
        PyObject *item = result_of(&openings[index]);
        if (item == NULL || PyList_SetItem(result, index, item) != 0)
            Py_CLEAR(result);
    }
done:
    for (Py_ssize_t index = 0; index < count; index++) {
        Py_XDECREF((PyObject *)openings[index].cursor);
        free(openings[index].pages.bytes);
    }
    free(openings);
    return result;
}

#endif
