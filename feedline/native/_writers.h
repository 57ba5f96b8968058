/* Write slots on threads that never take the interpreter's lock, and announce them in their order.
 *
 * Part of _rows.c. A SlotQueue belongs to a ring. Its jobs are listed by the feeder's loop (`_slots.h`), written by the
 * threads of this process, which all queues share, and announced by whichever thread writes the first that was not:
 *
 *     waiting -> writing -> written -> sent; or failed, after which none is sent
 *
 * One mutex guards all queues. No thread has it while it writes slots, sends, or waits for the interpreter's lock.
 */

#ifndef FEEDLINE_WRITERS_H
#define FEEDLINE_WRITERS_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <structmember.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READY_BYTES 41 /* as in ring.py */
#define TOGETHER 64    /* packets that are sent as one */

enum { WAITING, WRITING, WRITTEN, SENT, FAILED };

typedef struct SlotJob {
    Slot slot;
    struct SlotQueue *queue;
    struct SlotJob *next, *later; /* of its queue; of all that wait for a thread */
    int state;
    char packet[READY_BYTES];
} SlotJob;

typedef struct SlotQueue {
    PyObject_HEAD
    SlotJob *first, *last, *unsent; /* in the order of their steps; the first that is not sent */
    int connection, wake, threads;
    int waiting;        /* jobs that no thread has begun */
    int busy;           /* threads that write or send for this queue */
    int sending, held;  /* a thread sends; what is written waits for `take` */
    int woken;          /* the descriptor `wake` was written to since the last `take` */
    unsigned long forks;
    double seconds, cpu_seconds;
} SlotQueue;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_pending = PTHREAD_COND_INITIALIZER, is_idle = PTHREAD_COND_INITIALIZER;
static SlotJob *pending, *last_pending;
static int started, idle;
static unsigned long forks; /* between here and the process that made a queue */
static PyObject *queue_type;

static double clock_s(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A child has none of the threads; nothing that its parent began is ever finished there. */
static void after_fork(void) {
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&is_pending, NULL);
    pthread_cond_init(&is_idle, NULL);
    pending = last_pending = NULL;
    started = idle = 0;
    forks++;
}

/* Announce what is written, in order, and wake the loop when it has something to do. Gives the mutex away while it
 * sends. */
static void send_written(SlotQueue *queue) {
    char packet[TOGETHER * READY_BYTES];
    while (!queue->sending && !queue->held) {
        size_t count = 0;
        for (SlotJob *job = queue->unsent; job != NULL && job->state == WRITTEN && count < TOGETHER; job = job->next)
            memcpy(packet + count++ * READY_BYTES, job->packet, READY_BYTES);
        if (count == 0)
            break;
        queue->sending = 1;
        pthread_mutex_unlock(&mutex);
        ssize_t size;
        do
            size = send(queue->connection, packet, count * READY_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (size < 0 && errno == EINTR);
        const int full = size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK); /* else the other side is gone */
        pthread_mutex_lock(&mutex);
        queue->sending = 0;
        if (full)
            queue->held = 1;
        for (; !full && count > 0; count--) {
            queue->unsent->state = SENT;
            queue->unsent = queue->unsent->next;
        }
    }
    const SlotJob *front = queue->unsent;
    if (!queue->sending && !queue->woken
        && (front == NULL || front->state == FAILED || (queue->held && front->state == WRITTEN))) {
        const uint64_t one = 1;
        queue->woken = write(queue->wake, &one, sizeof one) == (ssize_t)sizeof one;
    }
}

static void *write_slots(void *unused) {
    (void)unused;
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (pending == NULL) {
            idle++;
            pthread_cond_wait(&is_pending, &mutex);
            idle--;
        }
        SlotJob *job = pending;
        SlotQueue *queue = job->queue;
        pending = job->later;
        job->state = WRITING;
        queue->waiting--;
        queue->busy++;
        pthread_mutex_unlock(&mutex);
        const double start_s = clock_s(CLOCK_MONOTONIC), cpu_s = clock_s(CLOCK_THREAD_CPUTIME_ID);
        const int valid = run_moves(&job->slot);
        const double taken_s = clock_s(CLOCK_MONOTONIC) - start_s, taken_cpu_s = clock_s(CLOCK_THREAD_CPUTIME_ID) - cpu_s;
        pthread_mutex_lock(&mutex);
        job->state = valid ? WRITTEN : FAILED;
        queue->seconds += taken_s;
        queue->cpu_seconds += taken_cpu_s;
        send_written(queue);
        if (--queue->busy == 0)
            pthread_cond_broadcast(&is_idle);
    }
    return NULL;
}

/* A thread that no signal interrupts. With the mutex. */
static int start_thread(void) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    const int failed = pthread_create(&thread, NULL, write_slots, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) {
        pthread_detach(thread);
        started++;
    }
    return failed;
}

/* Let a thread write a job; 0 if there is none, nor can be. With the mutex. */
static int hand_over(SlotJob *job) {
    if (idle == 0 && started < job->queue->threads && start_thread() != 0 && started == 0)
        return 0;
    job->later = NULL;
    if (pending == NULL)
        pending = job;
    else
        last_pending->later = job;
    last_pending = job;
    job->queue->waiting++;
    pthread_cond_signal(&is_pending);
    return 1;
}

static void free_jobs(SlotJob *job) {
    while (job != NULL) {
        SlotJob *next = job->next;
        slot_close(&job->slot);
        PyMem_Free(job);
        job = next;
    }
}

/* write(target, header, gaps, parts, copies, packet): see rows.py. */
static PyObject *queue_write(PyObject *object, PyObject *args) {
    SlotQueue *self = (SlotQueue *)object;
    PyObject *target, *header, *gaps, *parts, *copies, *packet;
    if (!PyArg_ParseTuple(args, "OOO!O!O!S", &target, &header, &PyTuple_Type, &gaps, &PyList_Type, &parts,
                          &PyList_Type, &copies, &packet))
        return NULL;
    if (PyBytes_Size(packet) != READY_BYTES) {
        too_small("the announcement of a slot", PyBytes_Size(packet), READY_BYTES);
        return NULL;
    }
    SlotJob *job = PyMem_Calloc(1, sizeof(SlotJob));
    if (job == NULL)
        return PyErr_NoMemory();
    if (slot_list(&job->slot, target, header, gaps, parts, copies) != 0) {
        free_jobs(job);
        return NULL;
    }
    memcpy(job->packet, PyBytes_AsString(packet), READY_BYTES);
    job->queue = self;
    /* A small batch takes microseconds, fewer than to wake a thread. */
    pthread_mutex_lock(&mutex);
    int here = job->slot.target->len <= KEPT_BYTES && self->waiting == 0 && self->busy == 0;
    pthread_mutex_unlock(&mutex);
    if (here)
        job->state = run_moves(&job->slot) ? WRITTEN : FAILED;
    pthread_mutex_lock(&mutex);
    if (self->last == NULL)
        self->first = job;
    else
        self->last->next = job;
    self->last = job;
    if (self->unsent == NULL)
        self->unsent = job;
    int failed = !here && !hand_over(job);
    pthread_mutex_unlock(&mutex);
    if (failed) /* no thread at all: here, with the lock */
        job->state = run_moves(&job->slot) ? WRITTEN : FAILED;
    Py_RETURN_NONE;
}

/* Detach the jobs before one; returns the first of them, NULL if there are none. With the mutex. */
static SlotJob *detach(SlotQueue *self, SlotJob *end) {
    SlotJob *detached = self->first == end ? NULL : self->first, *last = detached;
    while (last != NULL && last->next != end)
        last = last->next;
    if (last != NULL)
        last->next = NULL;
    self->first = end;
    if (end == NULL)
        self->last = NULL;
    return detached;
}

/* take(): see rows.py. */
static PyObject *queue_take(PyObject *object, PyObject *Py_UNUSED(none)) {
    SlotQueue *self = (SlotQueue *)object;
    Py_ssize_t count = 0, unsent = 0;
    pthread_mutex_lock(&mutex);
    uint64_t times;
    if (self->woken && read(self->wake, &times, sizeof times) != 0)
        self->woken = 0;
    for (SlotJob *job = self->first; job != self->unsent; job = job->next)
        count++;
    SlotJob *end = self->unsent;
    for (; !self->sending && end != NULL && end->state == WRITTEN; end = end->next)
        unsent++;
    self->unsent = end;
    self->held |= unsent > 0;
    const int failed = end != NULL && end->state == FAILED;
    SlotJob *taken = detach(self, end);
    pthread_mutex_unlock(&mutex);
    PyObject *packets = PyBytes_FromStringAndSize(NULL, unsent * READY_BYTES);
    if (packets != NULL) {
        char *to = PyBytes_AsString(packets);
        Py_ssize_t index = 0;
        for (SlotJob *job = taken; job != NULL; job = job->next, index++)
            if (index >= count)
                memcpy(to + (index - count) * READY_BYTES, job->packet, READY_BYTES);
    }
    free_jobs(taken);
    return packets == NULL ? NULL : Py_BuildValue("nNi", count + unsent, packets, failed);
}

/* hold(is_held): see rows.py. */
static PyObject *queue_hold(PyObject *object, PyObject *is_held) {
    const int held = PyObject_IsTrue(is_held);
    if (held < 0)
        return NULL;
    pthread_mutex_lock(&mutex);
    ((SlotQueue *)object)->held = held;
    pthread_mutex_unlock(&mutex);
    Py_RETURN_NONE;
}

/* Wait until nothing is written, or sent; without what no thread has begun, if it is dropped. */
static void await_idle(SlotQueue *self, int drop) {
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&mutex);
    if (drop && self->forks == forks) {
        SlotJob **link = &pending;
        self->held = 1;
        last_pending = NULL;
        while (*link != NULL) {
            if ((*link)->queue == self) {
                *link = (*link)->later;
            } else {
                last_pending = *link;
                link = &(*link)->later;
            }
        }
        self->waiting = 0;
    }
    while (self->forks == forks && (self->busy > 0 || self->waiting > 0))
        pthread_cond_wait(&is_idle, &mutex);
    pthread_mutex_unlock(&mutex);
    Py_END_ALLOW_THREADS
}

/* wait(): see rows.py. */
static PyObject *queue_wait(PyObject *object, PyObject *Py_UNUSED(none)) {
    await_idle((SlotQueue *)object, 0);
    Py_RETURN_NONE;
}

/* Forget all jobs, once none is being written. Returns how many of them were announced. */
static Py_ssize_t drop_jobs(SlotQueue *self) {
    Py_ssize_t sent = 0;
    await_idle(self, 1);
    if (self->forks != forks)
        return 0;
    for (SlotJob *job = self->first; job != self->unsent; job = job->next)
        sent++;
    self->unsent = NULL;
    self->held = 0;
    free_jobs(detach(self, NULL));
    return sent;
}

/* drop(): see rows.py. */
static PyObject *queue_drop(PyObject *object, PyObject *Py_UNUSED(none)) {
    return PyLong_FromSsize_t(drop_jobs((SlotQueue *)object));
}

static void queue_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    drop_jobs((SlotQueue *)object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* SlotQueue(connection, wake, threads): see rows.py. */
static PyObject *queue_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    int connection, wake, threads;
    if (!PyArg_ParseTuple(args, "iii", &connection, &wake, &threads))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    SlotQueue *self = (SlotQueue *)allocate(type, 0);
    if (self != NULL) {
        self->connection = connection;
        self->wake = wake;
        self->threads = threads;
        self->forks = forks;
    }
    return (PyObject *)self;
}

static PyMethodDef queue_methods[] = {
    {"write", queue_write, METH_VARARGS, "write(target, header, gaps, parts, copies, packet): write a batch."},
    {"take", queue_take, METH_NOARGS, "take(): what was announced, or is to be."},
    {"hold", queue_hold, METH_O, "hold(is_held): whether what is written waits for `take`."},
    {"wait", queue_wait, METH_NOARGS, "wait(): until all batches are written."},
    {"drop", queue_drop, METH_NOARGS, "drop(): forget all batches; how many of them were announced."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef queue_members[] = {
    {"seconds", T_DOUBLE, offsetof(SlotQueue, seconds), READONLY, "Of the threads that wrote."},
    {"cpu_seconds", T_DOUBLE, offsetof(SlotQueue, cpu_seconds), READONLY, "Of their CPUs."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot queue_slots[] = {
    {Py_tp_new, queue_new},
    {Py_tp_dealloc, queue_dealloc},
    {Py_tp_methods, queue_methods},
    {Py_tp_members, queue_members},
    {Py_tp_doc, "The batches of a ring that are being written."},
    {0, NULL},
};

static PyType_Spec queue_spec = {
    "feedline.native._rows.SlotQueue", sizeof(SlotQueue), 0, Py_TPFLAGS_DEFAULT, queue_slots,
};

/* Add the type to the module. */
static int add_queue(PyObject *module) {
    queue_type = PyType_FromSpec(&queue_spec);
    if (queue_type == NULL || PyModule_AddObjectRef(module, "SlotQueue", queue_type) != 0)
        return -1;
    return pthread_atfork(NULL, NULL, after_fork) == 0 ? 0 : -1;
}

#endif
