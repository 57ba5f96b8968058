/* Hand rows out as arrays of Arrow's C data interface: of many columns at once, without an object of Python for each.
 *
 * An array keeps the memory of its buffers until it is released, by whatever imported it, in any thread.
 */

#ifndef FEEDLINE_ARRAYS_H
#define FEEDLINE_ARRAYS_H

#include "_chunks.h"

/* As the interface's definition says: https://arrow.apache.org/docs/format/CDataInterface.html */
typedef struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
} ArrowArray;

/* What an array keeps: its buffers' memory, its children, and the pointers to both. */
typedef struct {
    const void *buffers[3];
    Vector memory[3];
    ArrowArray **pointers;
    ArrowArray children[];
} Kept;

/* Bytes that are 0 or 1 as a bitmap. */
static int pack_bits(Vector *bytes, int64_t count, Vector *bits) {
    const size_t size = ((size_t)count + 7) / 8;
    if (vector_reserve(bits, size) != 0 || vector_reserve(bytes, 8) != 0)
        return -1;
    memset(bytes->bytes + bytes->used, 0, 8);
    for (size_t index = 0; index < size; index++)
        bits->bytes[index] = (uint8_t)lowest_bits(load64(bytes->bytes + 8 * index));
    bits->used = size;
    bytes->used = 0;
    return 0;
}

static void release_array(ArrowArray *array) {
    Kept *kept = array->private_data;
    for (int64_t index = 0; index < array->n_children; index++)
        if (kept->children[index].release != NULL)
            kept->children[index].release(&kept->children[index]);
    for (int index = 0; index < 3; index++)
        vector_free(&kept->memory[index]);
    free(kept->pointers);
    free(kept);
    array->release = NULL;
}

/* An array of so many buffers and children, which are empty. Returns -1 without memory. */
static int new_array(ArrowArray *array, int64_t length, int64_t nulls, int buffers, int64_t children) {
    Kept *kept = calloc(1, sizeof *kept + (size_t)children * sizeof *kept->children);
    if (kept == NULL || (kept->pointers = calloc((size_t)children + 1, sizeof *kept->pointers)) == NULL) {
        free(kept);
        return -1;
    }
    for (int64_t index = 0; index < children; index++)
        kept->pointers[index] = &kept->children[index];
    *array = (ArrowArray){
        .length = length, .null_count = nulls, .n_buffers = buffers, .n_children = children, .buffers = kept->buffers,
        .children = kept->pointers, .release = release_array, .private_data = kept,
    };
    return 0;
}

/* Give an array a buffer: the vector's bytes, which is empty then. Returns -1 without memory. */
static int give(ArrowArray *array, int buffer, Vector *vector) {
    Kept *kept = array->private_data;
    if (vector->bytes == NULL && vector_reserve(vector, 0) != 0)
        return -1;
    kept->memory[buffer] = vector_move(vector);
    kept->buffers[buffer] = kept->memory[buffer].bytes;
    return 0;
}

/* Give an array bytes that are 0 or 1 as a bitmap; none, if no row is null. */
static int give_bits(ArrowArray *array, int buffer, Vector *bytes, int64_t count, int64_t zeros) {
    Vector bits = {0};
    if (zeros == 0)
        return 0;
    if (pack_bits(bytes, count, &bits) != 0)
        return -1;
    return give(array, buffer, &bits);
}

/* Offsets of 32 bits as ones of 64. */
static int widen(Vector *offsets) {
    const size_t count = offsets->used / sizeof(int32_t);
    Vector wide = {0};
    if (vector_reserve(&wide, count * sizeof(int64_t)) != 0)
        return -1;
    for (size_t index = 0; index < count; index++)
        ((int64_t *)wide.bytes)[index] = ((const int32_t *)offsets->bytes)[index];
    wide.used = count * sizeof(int64_t);
    vector_free(offsets);
    *offsets = wide;
    return 0;
}

/* Integers of 32 bits as ones of `size` bytes, in place. */
static void shorten(Vector *values, int size) {
    const int32_t *from = (const int32_t *)values->bytes;
    const size_t count = values->used / sizeof(int32_t);
    if (size == 1)
        for (size_t index = 0; index < count; index++)
            ((int8_t *)values->bytes)[index] = (int8_t)from[index];
    else
        for (size_t index = 0; index < count; index++) {
            const int16_t value = (int16_t)from[index];
            memcpy(values->bytes + 2 * index, &value, sizeof value);
        }
    values->used = count * (size_t)size;
}

/* The values so far: of a flat column its rows, of lists their elements. */
static int give_values(Cursor *cursor, ArrowArray *array) {
    const int64_t count = cursor->elements;
    const int is_text = cursor->physical == BYTE_ARRAY && !cursor->codes;
    if (is_text && cursor->values.used == 0 && put_offset(&cursor->values, 0) != 0)
        return -1;
    if (new_array(array, count, cursor->nulls, is_text ? 3 : 2, 0) != 0
        || give_bits(array, 0, &cursor->valid, count, cursor->nulls) != 0)
        return -1;
    if (cursor->physical == BOOLEAN && !cursor->codes)
        return give_bits(array, 1, &cursor->values, count, 1);
    if (is_text && ((cursor->long_strings && widen(&cursor->values) != 0) || give(array, 2, &cursor->bytes) != 0))
        return -1;
    if (cursor->narrow && !cursor->codes)
        shorten(&cursor->values, cursor->narrow);
    return give(array, 1, &cursor->values);
}

/* The rows so far. On failure, the array is to be released all the same, if it has a function for that. */
static int give_rows(Cursor *cursor, ArrowArray *array) {
    if (!cursor->lists)
        return give_values(cursor, array);
    const int64_t rows = cursor->rows;
    if (new_array(array, rows, cursor->null_lists, 2, 1) != 0
        || give_bits(array, 0, &cursor->list_valid, rows, cursor->null_lists) != 0)
        return -1;
    if (end_lists(cursor) != 0 || (cursor->long_lists && widen(&cursor->starts) != 0)
        || give(array, 1, &cursor->starts) != 0)
        return -1;
    return give_values(cursor, array->children[0]);
}

static const char FEWER_ROWS[] = "fewer rows";

/* Decode the next rows, and hand them out. Returns -1 after an error. */
static int take_rows_of(Cursor *cursor, int64_t rows, void **context, ArrowArray *array) {
    const int complete = read_rows(cursor, rows, context);
    if (complete < 0)
        return -1;
    if (rows_seen(cursor) != rows)
        return fail(cursor, FEWER_ROWS);
    cursor->taken += rows;
    if (cursor->taken == cursor->chunk_rows && (cursor->has_more || (cursor->lists && complete)))
        return fail(cursor, "its pages hold more rows than its footer says");
    if (give_rows(cursor, array) != 0)
        return fail(cursor, NO_MEMORY);
    begin_rows(cursor);
    return 0;
}

static void free_capsule(PyObject *capsule) {
    ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
    if (array != NULL && array->release != NULL)
        array->release(array);
    free(array);
}

/* take_rows(cursors, flat, rows): decode the next `rows` of each, whose chunks they read themselves, and hand them out as
 * two structures of arrays, in capsules: the first `flat` cursors' rows, and the others'. If any fails, a list instead
 * with what is wrong with each: a text, or the number of rows if there are too few; None for no memory, False for nothing. */
static PyObject *take_rows(PyObject *module, PyObject *args) {
    PyObject *cursors, *result = NULL;
    Py_ssize_t flat, claimed = 0;
    long long rows;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!nL", &PyTuple_Type, &cursors, &flat, &rows))
        return NULL;
    const Py_ssize_t count = PyTuple_Size(cursors);
    Cursor **all = calloc((size_t)count + 1, sizeof *all);
    ArrowArray *structs[2] = {calloc(1, sizeof(ArrowArray)), calloc(1, sizeof(ArrowArray))};
    int failures = 0;
    if (all == NULL || structs[0] == NULL || structs[1] == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (flat < 0 || flat > count || rows < 0) {
        PyErr_SetString(PyExc_ValueError, "there are fewer cursors than flat ones, or fewer than no rows");
        goto done;
    }
    for (; claimed < count; claimed++) {
        PyObject *object = PyTuple_GetItem(cursors, claimed);
        if (claim(object, rows) != 0)
            goto done;
        all[claimed] = (Cursor *)object;
        if (all[claimed]->flags.obj != NULL) {
            PyErr_SetString(PyExc_ValueError, "a cursor does not deliver all rows");
            claimed++;
            goto done;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    void *context = NULL;
    const int is_short = new_array(structs[0], rows, 0, 1, flat) != 0 || new_array(structs[1], rows, 0, 1, count - flat) != 0;
    for (Py_ssize_t index = 0; index < count; index++) {
        ArrowArray *parent = structs[index >= flat];
        all[index]->failed = is_short ? fail(all[index], NO_MEMORY) != 0
            : take_rows_of(all[index], rows, &context, parent->children[index < flat ? index : index - flat]) != 0;
        failures += all[index]->failed;
    }
    if (context != NULL)
        zstd.release(context);
    Py_END_ALLOW_THREADS
    if (failures) {
        result = PyList_New(count);
        for (Py_ssize_t index = 0; result != NULL && index < count; index++) {
            const char *error = all[index]->error;
            PyObject *item = !all[index]->failed ? Py_NewRef(Py_False)
                : error == FEWER_ROWS ? PyLong_FromLongLong(rows_seen(all[index]))
                : error == NO_MEMORY || error == NULL ? Py_NewRef(Py_None) : PyUnicode_FromString(error);
            if (item == NULL || PyList_SetItem(result, index, item) != 0)
                Py_CLEAR(result);
        }
        goto done;
    }
    PyObject *capsules[2] = {NULL, NULL};
    for (int index = 0; index < 2; index++)
        if ((capsules[index] = PyCapsule_New(structs[index], "arrow_array", free_capsule)) != NULL)
            structs[index] = NULL;
    if (capsules[0] != NULL && capsules[1] != NULL)
        result = Py_BuildValue("(OO)", capsules[0], capsules[1]);
    Py_XDECREF(capsules[0]);
    Py_XDECREF(capsules[1]);
done:
    for (Py_ssize_t index = 0; index < claimed; index++)
        ((Cursor *)PyTuple_GetItem(cursors, index))->busy = 0;
    for (int index = 0; index < 2; index++) {
        if (structs[index] != NULL && structs[index]->release != NULL)
            structs[index]->release(structs[index]);
        free(structs[index]);
    }
    free(all);
    return result;
}

#endif
