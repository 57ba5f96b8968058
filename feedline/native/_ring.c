/* Receive what a feeder has announced, lease its slots, and report them as free: a trainer's part of a ring.
 *
 * A Lease is at once the bytes of a slot, a buffer that views keep alive, and what frees the slot after the last of
 * them. It is not tracked by the garbage collector: nothing that it refers to refers to a batch. Nothing here gives the
 * interpreter's lock away or looks for signals, so whatever is begun is completed: a packet takes less time than to get
 * the lock back.
 *
 * Compiled for the stable ABI of Python 3.11; see ring.py for arguments and results.
 */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <structmember.h>
#include <string.h>
#include <sys/socket.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "packets are little-endian"
#endif

#define READY_BYTES 41 /* as in channel.py: kind, stream, generation, slot, rows, epoch, step, bytes of the batch */
#define FREE_BYTES 9   /* kind, generation, slot */
#define REPORTS 1024   /* at most in one packet */

/* What leases of a generation share: a tuple, see `Books` in ring.py. */
enum { GENERATION, LEASED, UNSENT, QUEUE, CONNECTION, RELEASE, BOOKS };

typedef struct {
    PyObject_HEAD
    Py_buffer mapping;
    char *start;
    Py_ssize_t nbytes;
    PyObject *books, *slot, *fences;
    unsigned long time; /* of its making; `slot` is set last: an incomplete lease frees nothing */
} Lease;

static unsigned long now; /* counts calls of `forget_leases` */
static PyObject *lease_type, *ready_kind, *free_kind, *name_closed, *name_append, *name_number, *name_tear;

/* -- packets ------------------------------------------------------------------------------------------------------ */

/* Send all reports in a list of packed ones, in few packets; those that find no room stay. */
static int send_reports(PyObject *connection, PyObject *unsent) {
    char packet[REPORTS * FREE_BYTES];
    Py_ssize_t count = PyList_Size(unsent);
    if (count <= 0)
        return (int)count;
    int fd = PyObject_AsFileDescriptor(connection); /* may collect garbage, and with it report other slots */
    if (fd < 0) {
        PyErr_Clear(); /* closed: nobody needs to know any more */
        return PyList_SetSlice(unsent, 0, PyList_Size(unsent), NULL);
    }
    while ((count = PyList_Size(unsent)) > 0) {
        if (count > REPORTS)
            count = REPORTS;
        for (Py_ssize_t index = 0; index < count; index++) {
            char *report;
            Py_ssize_t size;
            if (PyBytes_AsStringAndSize(PyList_GetItem(unsent, index), &report, &size) != 0)
                return -1;
            if (size != FREE_BYTES) {
                PyErr_Format(PyExc_ValueError, "a report has %d bytes: got %zd", FREE_BYTES, size);
                return -1;
            }
            memcpy(packet + index * FREE_BYTES, report, FREE_BYTES);
        }
        if (send(fd, packet, (size_t)(count * FREE_BYTES), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK)
                return 0; /* else the other side is gone */
        }
        if (PyList_SetSlice(unsent, 0, count, NULL) != 0)
            return -1;
    }
    return count < 0 ? -1 : 0;
}

/* The descriptor of a connection; -1 with an OSError if it is closed. */
static int descriptor_of(PyObject *connection) {
    int fd = PyObject_AsFileDescriptor(connection);
    if (fd < 0) {
        PyErr_Clear();
        errno = EBADF;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return fd;
}

/* flush(connection, unsent) */
static PyObject *flush(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "flush takes two arguments");
        return NULL;
    }
    if (send_reports(arguments[0], arguments[1]) != 0)
        return NULL;
    Py_RETURN_NONE;
}

/* send(connection, packet) */
static PyObject *send_packet(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer packet;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "send takes two arguments");
        return NULL;
    }
    int fd = descriptor_of(arguments[0]);
    if (fd < 0)
        return NULL;
    if (PyObject_GetBuffer(arguments[1], &packet, PyBUF_SIMPLE) != 0)
        return NULL;
    Py_ssize_t size;
    do
        size = send(fd, packet.buf, (size_t)packet.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (size < 0 && errno == EINTR);
    int error = errno;
    PyBuffer_Release(&packet);
    if (size >= 0)
        Py_RETURN_TRUE;
    if (error == EAGAIN || error == EWOULDBLOCK)
        Py_RETURN_FALSE;
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static int append(PyObject *queue, PyObject *arrival) {
    PyObject *done = arrival == NULL ? NULL : PyObject_CallMethodObjArgs(queue, name_append, arrival, NULL);
    Py_XDECREF(arrival);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int append_ready(PyObject *queue, const char *packet, Py_ssize_t size) {
    for (; size >= READY_BYTES; packet += READY_BYTES, size -= READY_BYTES) {
        uint32_t head[4];
        uint64_t tail[3];
        memcpy(head, packet + 1, sizeof head);
        memcpy(tail, packet + 1 + sizeof head, sizeof tail);
        if (append(queue, Py_BuildValue("OIIIIKKK", ready_kind, head[0], head[1], head[2], head[3],
                                        (unsigned long long)tail[0], (unsigned long long)tail[1],
                                        (unsigned long long)tail[2])) != 0)
            return -1;
    }
    return 0;
}

static int append_free(PyObject *queue, const char *packet, Py_ssize_t size) {
    for (; size >= FREE_BYTES; packet += FREE_BYTES, size -= FREE_BYTES) {
        uint32_t places[2];
        memcpy(places, packet + 1, sizeof places);
        if (append(queue, Py_BuildValue("OII", free_kind, places[0], places[1])) != 0)
            return -1;
    }
    return 0;
}

/* receive(connection, packet, queue) */
static PyObject *receive(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer packet;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "receive takes three arguments");
        return NULL;
    }
    int fd = descriptor_of(arguments[0]);
    if (fd < 0)
        return NULL;
    if (PyObject_GetBuffer(arguments[1], &packet, PyBUF_WRITABLE) != 0)
        return NULL;
    const char *first = packet.buf;
    Py_ssize_t size;
    int error = 0, failed = 0;
    for (;;) {
        size = recv(fd, packet.buf, (size_t)packet.len, MSG_DONTWAIT);
        error = size < 0 ? errno : 0;
        if (error == EINTR)
            continue;
        if (size <= 0 || (*first != 'R' && *first != 'F'))
            break;
        failed = *first == 'R' ? append_ready(arguments[2], first, size) : append_free(arguments[2], first, size);
        if (failed)
            break;
    }
    PyBuffer_Release(&packet);
    if (failed)
        return NULL;
    if (!error || error == EAGAIN || error == EWOULDBLOCK)
        return PyLong_FromSsize_t(size);
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* -- leases ------------------------------------------------------------------------------------------------------- */

/* lease(mapping, start, nbytes, books, slot) */
static PyObject *lease(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    if (count != 5 || !PyTuple_Check(arguments[3]) || PyTuple_Size(arguments[3]) != BOOKS
        || !PyList_Check(PyTuple_GetItem(arguments[3], UNSENT))) {
        PyErr_SetString(PyExc_TypeError, "lease takes a mapping, two numbers, the books, and a slot");
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(arguments[1]);
    if (start == -1 && PyErr_Occurred())
        return NULL;
    Py_ssize_t nbytes = PyLong_AsSsize_t(arguments[2]);
    if (nbytes == -1 && PyErr_Occurred())
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)lease_type, Py_tp_alloc);
    Lease *self = (Lease *)allocate((PyTypeObject *)lease_type, 0);
    if (self == NULL)
        return NULL;
    if (PyObject_GetBuffer(arguments[0], &self->mapping, PyBUF_WRITABLE) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (start < 0 || nbytes < 0 || start > self->mapping.len || nbytes > self->mapping.len - start) {
        PyErr_Format(PyExc_ValueError, "a slot lies outside its mapping: got %zd bytes from %zd on, of %zd", nbytes,
                     start, self->mapping.len);
        Py_DECREF(self);
        return NULL;
    }
    self->start = (char *)self->mapping.buf + start;
    self->nbytes = nbytes;
    self->books = Py_NewRef(arguments[3]);
    self->fences = PyList_New(0);
    if (self->fences == NULL || PySet_Add(PyTuple_GetItem(self->books, LEASED), arguments[4]) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->time = now;
    self->slot = Py_NewRef(arguments[4]);
    return (PyObject *)self;
}

/* Report a slot without fences, at once or with others: see `RingReader`. */
static int report(PyObject *books, PyObject *slot) {
    PyObject *generation = PyTuple_GetItem(books, GENERATION), *unsent = PyTuple_GetItem(books, UNSENT);
    PyObject *closed = PyObject_GetAttr(generation, name_closed);
    int is_closed = closed == NULL ? -1 : PyObject_IsTrue(closed);
    Py_XDECREF(closed);
    if (is_closed != 0)
        return is_closed < 0 ? -1 : 0;
    PyObject *number = PyObject_GetAttr(generation, name_number);
    if (number == NULL)
        return -1;
    uint32_t places[2] = {(uint32_t)PyLong_AsUnsignedLong(number), (uint32_t)PyLong_AsUnsignedLong(slot)};
    Py_DECREF(number);
    char packed[FREE_BYTES] = {'F'};
    memcpy(packed + 1, places, sizeof places);
    PyObject *packet = PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize(packed, FREE_BYTES);
    int failed = packet == NULL || PySet_Discard(PyTuple_GetItem(books, LEASED), slot) < 0
                 || PyList_Append(unsent, packet) != 0;
    Py_XDECREF(packet);
    if (failed)
        return -1;
    Py_ssize_t waiting = PyObject_Size(PyTuple_GetItem(books, QUEUE));
    if (waiting < 0)
        return -1;
    return PyList_Size(unsent) < waiting ? 0 : send_reports(PyTuple_GetItem(books, CONNECTION), unsent);
}

/* Free the slot; an error is written, as in any finalizer, and tears the ring: the slot may be lost. */
static void lease_dealloc(PyObject *object) {
    Lease *self = (Lease *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->slot != NULL && self->time == now) {
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        PyObject *release = PyTuple_GetItem(self->books, RELEASE), *done = NULL;
        PyObject *generation = PyTuple_GetItem(self->books, GENERATION);
        if (PyList_Size(self->fences) > 0)
            done = PyObject_CallFunctionObjArgs(release, generation, self->slot, self->fences, NULL);
        else if (report(self->books, self->slot) == 0)
            done = Py_NewRef(Py_None);
        if (done == NULL) {
            PyErr_WriteUnraisable(release);
            done = PyObject_CallMethodObjArgs(generation, name_tear, NULL);
            if (done == NULL)
                PyErr_WriteUnraisable(release);
        }
        Py_XDECREF(done);
        PyErr_Restore(kind, error, trace);
    }
    Py_XDECREF(self->fences);
    Py_XDECREF(self->slot);
    Py_XDECREF(self->books);
    if (self->mapping.obj != NULL)
        PyBuffer_Release(&self->mapping);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static int lease_buffer(PyObject *object, Py_buffer *view, int flags) {
    Lease *self = (Lease *)object;
    return PyBuffer_FillInfo(view, object, self->start, self->nbytes, 0, flags);
}

static Py_ssize_t lease_length(PyObject *object) {
    return ((Lease *)object)->nbytes;
}

static PyObject *lease_generation(PyObject *object, void *Py_UNUSED(closure)) {
    return Py_NewRef(PyTuple_GetItem(((Lease *)object)->books, GENERATION));
}

static PyMemberDef lease_members[] = {
    {"fences", T_OBJECT_EX, offsetof(Lease, fences), READONLY, "Called when the slot is free of views."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef lease_properties[] = {
    {"generation", lease_generation, NULL, "What the slot belongs to.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot lease_slots[] = {
    {Py_tp_dealloc, lease_dealloc},
    {Py_tp_members, lease_members},
    {Py_tp_getset, lease_properties},
    {Py_bf_getbuffer, lease_buffer},
    {Py_sq_length, lease_length},
    {Py_tp_doc, "The bytes of a slot, which is freed after their last view."},
    {0, NULL},
};

static PyType_Spec lease_spec = {
    "feedline.native._ring.Lease", sizeof(Lease), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, lease_slots,
};

static PyObject *forget_leases(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    now++;
    Py_RETURN_NONE;
}

/* -- the module --------------------------------------------------------------------------------------------------- */

#define CALLED_FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

static PyMethodDef methods[] = {
    {"receive", CALLED_FAST(receive), "receive(connection, packet, queue): file what was announced."},
    {"send", CALLED_FAST(send_packet), "send(connection, packet): whether there was room."},
    {"flush", CALLED_FAST(flush), "flush(connection, unsent): send reports of free slots."},
    {"lease", CALLED_FAST(lease), "lease(mapping, start, nbytes, books, slot): a Lease of a slot."},
    {"forget_leases", forget_leases, METH_NOARGS, "forget_leases(): those that there are free nothing."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_ring", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__ring(void) {
    lease_type = PyType_FromSpec(&lease_spec);
    ready_kind = PyBytes_FromString("R");
    free_kind = PyBytes_FromString("F");
    name_closed = PyUnicode_InternFromString("closed");
    name_append = PyUnicode_InternFromString("append");
    name_number = PyUnicode_InternFromString("number");
    name_tear = PyUnicode_InternFromString("tear");
    if (lease_type == NULL || ready_kind == NULL || free_kind == NULL || name_closed == NULL || name_append == NULL
        || name_number == NULL || name_tear == NULL)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "VERSION", 1) != 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
