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

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "_arrays.h"
#include "_look_up.h"
#include "_opening.h"

/* ---- results with names ------------------------------------------------------------------------------------------ */

static PyTypeObject *decoded_type, *strings_type, *table_type;

static PyStructSequence_Field decoded_fields[] = {
    {"rows", NULL}, {"elements", NULL}, {"values", NULL}, {"bytes", NULL}, {"valid", NULL}, {"nulls", NULL},
    {"starts", NULL}, {"list_valid", NULL}, {"null_lists", NULL}, {"passed", NULL}, {NULL, NULL},
};
static PyStructSequence_Field strings_fields[] = {
    {"offsets", NULL}, {"bytes", NULL}, {"longest", NULL}, {"is_ascii", NULL}, {NULL, NULL},
};
static PyStructSequence_Field table_fields[] = {
    {"pages", NULL}, {"kinds", NULL}, {"encodings", NULL}, {"def_encodings", NULL}, {"rep_encodings", NULL},
    {"entries", NULL}, {NULL, NULL},
};
static PyStructSequence_Desc decoded_names = {"feedline.native._parquet.Decoded", NULL, decoded_fields, 10};
static PyStructSequence_Desc strings_names = {"feedline.native._parquet.DictionaryStrings", NULL, strings_fields, 4};
static PyStructSequence_Desc table_names = {"feedline.native._parquet.PageTable", NULL, table_fields, 6};

/* The items of a new tuple by their names. NULL after an error, such as there being no tuple. */
static PyObject *with_names(PyTypeObject *type, PyObject *tuple) {
    PyObject *result = tuple == NULL ? NULL : PyStructSequence_New(type);
    for (Py_ssize_t index = 0; result != NULL && index < PyTuple_Size(tuple); index++)
        PyStructSequence_SetItem(result, index, Py_NewRef(PyTuple_GetItem(tuple, index)));
    Py_XDECREF(tuple);
    return result;
}

/* ---- methods ----------------------------------------------------------------------------------------------------- */

static PyObject *raise(Cursor *cursor) {
    const char *message = cursor->error;
    cursor->error = NULL;
    if (message == NO_MEMORY || message == NULL)
        return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, message);
    return NULL;
}

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
    if (rows < rows_seen(cursor) || rows > most_rows(cursor)) {
        PyErr_SetString(PyExc_ValueError,
                        rows < rows_seen(cursor) ? "there are more rows already" : "there are fewer flags");
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
    return pack_bits(bytes, count, &bits) == 0 ? vector_take(&bits) : PyErr_NoMemory();
}

static PyObject *take(Cursor *cursor, PyObject *unused) {
    PyObject *values, *bytes = NULL, *valid, *starts = NULL, *list_valid = NULL;
    const int64_t rows = cursor->lists ? cursor->rows : cursor->elements, elements = cursor->elements;
    const int64_t nulls = cursor->nulls, null_lists = cursor->null_lists, passed = cursor->passed;
    (void)unused;
    if (cursor->physical == BYTE_ARRAY && !cursor->codes && cursor->values.used == 0
        && put_offset(&cursor->values, 0) != 0)
        return PyErr_NoMemory();
    if (cursor->physical == BOOLEAN) {
        values = take_bits(&cursor->values, elements, 1);
    } else {
        values = vector_take(&cursor->values);
    }
    bytes = cursor->physical == BYTE_ARRAY && !cursor->codes ? vector_take(&cursor->bytes) : Py_NewRef(Py_None);
    valid = take_bits(&cursor->valid, elements, nulls);
    if (cursor->lists) {
        starts = end_lists(cursor) == 0 ? vector_take(&cursor->starts) : PyErr_NoMemory();
        list_valid = take_bits(&cursor->list_valid, rows, null_lists);
    } else {
        starts = Py_NewRef(Py_None);
        list_valid = Py_NewRef(Py_None);
    }
    cursor->taken += rows_seen(cursor);
    begin_rows(cursor);
    if (values == NULL || bytes == NULL || valid == NULL || starts == NULL || list_valid == NULL) {
        Py_XDECREF(values);
        Py_XDECREF(bytes);
        Py_XDECREF(valid);
        Py_XDECREF(starts);
        Py_XDECREF(list_valid);
        return NULL;
    }
    return with_names(decoded_type, Py_BuildValue("(LLNNNLNNLL)", (long long)rows, (long long)elements, values, bytes,
                                                  valid, (long long)nulls, starts, list_valid, (long long)null_lists,
                                                  (long long)passed));
}

GUARDED(cursor_source, set_source)
GUARDED(cursor_flags, set_flags)
GUARDED(cursor_dictionary_bytes, dictionary_bytes)
GUARDED(cursor_begin, begin_page)
GUARDED(cursor_dictionary, set_dictionary)
GUARDED(cursor_dictionary_strings, dictionary_strings)
GUARDED(cursor_advance, advance)
GUARDED(cursor_take, take)

static PyObject *cursor_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    Layout layout = {0};
    int codes, prefix;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "iiiiii", &layout.physical, &layout.size, &layout.lists, &layout.max_def, &codes, &prefix))
        return NULL;
    return (PyObject *)new_cursor(type, &layout, codes, prefix);
}

static void cursor_dealloc(PyObject *self) {
    Cursor *cursor = (Cursor *)self;
    PyTypeObject *type = Py_TYPE(self);
    Vector *vectors[] = {&cursor->values, &cursor->bytes, &cursor->valid, &cursor->starts, &cursor->list_valid,
                         &cursor->entry_ends, &cursor->entry_bytes, &cursor->unpacked, &cursor->unpacked_entries};
    close_page(cursor);
    release(&cursor->dictionary);
    release(&cursor->chunk);
    release(&cursor->flags);
    free(cursor->table);
    free(cursor->page_lengths);
    free(cursor->borders);
    for (size_t index = 0; index < sizeof vectors / sizeof *vectors; index++)
        free(vectors[index]->bytes);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

/* page_table(chunk, values): the pages of a column chunk, which are all of its bytes and hold so many values (none: if there
 * are none); as bits, their kinds, the encodings of values in data pages, and of levels in those of the first version; and
 * how many values the dictionary has, which comes first. */
static PyObject *page_table(PyObject *module, PyObject *args) {
    PyObject *chunk;
    Py_buffer view;
    long long values;
    (void)module;
    if (!PyArg_ParseTuple(args, "OL", &chunk, &values) || PyObject_GetBuffer(chunk, &view, PyBUF_SIMPLE) != 0)
        return NULL;
    Vector pages = {0};
    Summary found = {0};
    const char *error = find_pages(view.buf, view.len, values, &pages, &found);
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
    return with_names(table_type, Py_BuildValue("(NLLLLL)", result, (long long)found.kinds, (long long)found.encodings,
                                                (long long)found.def_encodings, (long long)found.rep_encodings,
                                                (long long)found.entries));
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

static PyMethodDef cursor_methods[] = {
    {"dictionary", cursor_dictionary, METH_VARARGS, "dictionary(bytes, count): set the dictionary."},
    {"source", cursor_source, METH_VARARGS, "source(chunk, pages, codec): read a chunk's pages itself."},
    {"flags", cursor_flags, METH_O, "flags(bytes): deliver only rows with a flag, and those that hold a value."},
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
    {"open_chunks", open_chunks, METH_O, "open_chunks(requests): cursors over column chunks."},
    {"take_rows", take_rows, METH_VARARGS, "take_rows(cursors, flat, rows): decode the next rows to structures of arrays."},
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
        || PyModule_AddIntConstant(module, "VERSION", 10) != 0
        || PyModule_AddObjectRef(module, "Cursor", (PyObject *)cursor_type) != 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
