/* Read whole column chunks: find, verify and decompress their pages, many chunks in one call. */

#ifndef FEEDLINE_CHUNKS_H
#define FEEDLINE_CHUNKS_H

#include "_checksum.h"
#include "_levels.h"
#include "_pages.h"
#include "_snappy.h"
#include "_tuples.h"

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

/* Decompress to exactly `size` bytes. context: of zstd, made when it is needed. */
static int decompress(Cursor *cursor, int codec, void **context, const uint8_t *at, int64_t length, Vector *out,
                      int64_t size) {
    const uint8_t *end = at + length;
    int64_t done = -1;
    out->used = 0;
    if (reserve(cursor, out, size, 1) != 0)
        return -1;
    switch (codec) {
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
    const int is_new = page->kind == DATA_PAGE_V2, is_dictionary = page->kind == DICTIONARY_PAGE;
    const int64_t levels = is_new ? page->def_bytes + page->rep_bytes : 0;
    int64_t length = page->compressed - levels;
    const int64_t size = page->uncompressed - levels;
    const uint8_t *values = bytes + levels;
    /* no bytes at all are not compressed */
    const int is_packed = cursor->codec != UNCOMPRESSED && (!is_new || (page->is_compressed && (length || size)));
    if (!is_packed && length != size)
        return fail(cursor, "a page has another size than its header says");
    if (is_packed || is_dictionary || COPIED) {
        Vector *out = is_dictionary ? &cursor->unpacked_entries : &cursor->unpacked;
        if (decompress(cursor, is_packed ? cursor->codec : UNCOMPRESSED, context, values, length, out, size) != 0)
            return -1;
        values = out->bytes;
        length = size;
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

/* Take the dictionary, if the first page is one. */
static int open_chunk(Cursor *cursor, void **context) {
    if (cursor->pages_left == 0 || cursor->pages->kind != DICTIONARY_PAGE)
        return 0;
    return next_page(cursor, context) < 0 ? -1 : 1;
}

/* Have the first values' memory made for all of these rows, as far as pages say how many there are: memory that grows is
 * copied, and its new pages are faulted in. */
static void expect_rows(Cursor *cursor, int64_t rows) {
    const int64_t most = MOST_EXPECTED / (int64_t)slot_size(cursor);
    int64_t slots = cursor->slots;
    if (cursor->values.bytes != NULL || cursor->values.before > 0 || cursor->flags.obj != NULL)
        return;
    for (int64_t page = 0; page < cursor->pages_left && slots < most; page++)
        slots += cursor->pages[page].kind == DICTIONARY_PAGE ? 0 : cursor->pages[page].values;
    if (!cursor->lists && slots > rows)
        slots = rows;
    cursor->values.before = (size_t)(slots < most ? slots : most) * slot_size(cursor);
}

/* Decode until there are so many rows. Returns 1 if there are, 0 if the pages end before, -1 after an error. */
static int read_rows(Cursor *cursor, int64_t rows, void **context) {
    int stopped;
    expect_rows(cursor, rows);
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
        failed = (page->kind != DATA_PAGE && page->kind != DICTIONARY_PAGE && page->kind != DATA_PAGE_V2)
            || page->compressed < 0 || page->compressed > size || page->start < 0
            || page->start > size - page->compressed || page->uncompressed < 0 || page->uncompressed > INT32_MAX
            || page->values < 0 || page->values > INT32_MAX || page->encoding < 0 || page->encoding > INT32_MAX;
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

/* flags(bytes): deliver only rows whose byte is 1, not 0, and those that hold a value. */
static PyObject *set_flags(Cursor *cursor, PyObject *bytes) {
    if (cursor->flags.obj != NULL || cursor->taken + rows_seen(cursor) > 0
        || (cursor->lists ? cursor->listed == 0 : cursor->max_def == 0)) {
        PyErr_SetString(PyExc_ValueError, "a cursor does not take flags of such rows");
        return NULL;
    }
    if (PyObject_GetBuffer(bytes, &cursor->flags, PyBUF_SIMPLE) != 0)
        return NULL;
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
    else if (rows >= 0 && (rows < rows_seen(cursor) || rows > most_rows(cursor)))
        error = rows < rows_seen(cursor) ? "there are more rows already" : "there are fewer flags";
    if (error != NULL) {
        PyErr_SetString(PyExc_ValueError, error);
        return -1;
    }
    cursor->busy = 1;
    return 0;
}

/* read_chunks(cursors, rows): decode each until there are so many rows; -1: take the dictionaries. For
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
    PyObject *result = all == NULL ? NULL : PyList_New(count);
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
        if (item == NULL || PyList_SetItem(result, index, item) != 0)
            Py_CLEAR(result);
    }
    if (all == NULL && !PyErr_Occurred())
        PyErr_NoMemory();
    PyMem_Free(all);
    PyMem_Free(done);
    return as_tuple(result);
}

#endif
