/* Bytes that grow, and are handed out to Python without a copy. */

#ifndef FEEDLINE_VECTORS_H
#define FEEDLINE_VECTORS_H

#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Bytes with the buffer protocol; views of them keep it alive. */
typedef struct {
    PyObject_HEAD
    uint8_t *bytes;
    Py_ssize_t size;
} Memory;

static PyTypeObject *memory_type;
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

/* A vector with these bytes, in place of which an empty one begins. */
static Vector vector_move(Vector *vector) {
    const Vector moved = *vector;
    memset(vector, 0, sizeof *vector);
    vector->before = moved.used;
    return moved;
}

static void vector_free(Vector *vector) {
    if (overwrites && vector->bytes != NULL)
        memset(vector->bytes, 0xA5, vector->used);
    free(vector->bytes);
    memset(vector, 0, sizeof *vector);
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
    const Vector moved = vector_move(vector);
    memory->bytes = moved.bytes;
    memory->size = (Py_ssize_t)moved.used;
    return (PyObject *)memory;
}

#endif
