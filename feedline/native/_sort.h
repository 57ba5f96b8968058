/* Sort random words.
 *
 * Part of _rows.c. Words whose high bits are random are in order, but for a few, once they are sorted by 22 of these:
 * two passes over all of them, which take a quarter of the time of comparisons.
 */

#ifndef FEEDLINE_SORT_H
#define FEEDLINE_SORT_H

#define DIGIT 11 /* bits of a pass, whose 2,048 places are in the first cache */

/* Sort by the digit at `shift`; words of the same digit stay as they were. */
static void sort_digit(const uint64_t *from, uint64_t *to, Py_ssize_t count, int shift) {
    size_t places[1 << DIGIT] = {0}, place = 0;
    for (Py_ssize_t index = 0; index < count; index++)
        places[from[index] >> shift & ((1 << DIGIT) - 1)]++;
    for (int digit = 0; digit < 1 << DIGIT; digit++) {
        const size_t words = places[digit];
        places[digit] = place;
        place += words;
    }
    for (Py_ssize_t index = 0; index < count; index++)
        to[places[from[index] >> shift & ((1 << DIGIT) - 1)]++] = from[index];
}

/* sort_words(words): sort uint64 words, whose high bits are random, in place. */
static PyObject *sort_words(PyObject *module, PyObject *object) {
    Buffers buffers;
    (void)module;
    if (buffers_open(&buffers, 1) != 0)
        return NULL;
    const Py_buffer *view = buffers_add(&buffers, object, 1);
    uint64_t *others = view == NULL ? NULL : PyMem_Malloc((size_t)view->len + 1);
    if (others == NULL || view->itemsize != 8) {
        if (view != NULL && others == NULL)
            PyErr_NoMemory();
        else if (view != NULL)
            PyErr_SetString(PyExc_ValueError, "words are of 8 bytes");
        PyMem_Free(others);
        buffers_close(&buffers);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    uint64_t *words = view->buf;
    const Py_ssize_t count = view->len / 8;
    sort_digit(words, others, count, 64 - 2 * DIGIT);
    sort_digit(others, words, count, 64 - DIGIT);
    for (Py_ssize_t index = 1; index < count; index++) {
        const uint64_t word = words[index];
        Py_ssize_t place = index;
        for (; place > 0 && words[place - 1] > word; place--)
            words[place] = words[place - 1];
        words[place] = word;
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(others);
    buffers_close(&buffers);
    Py_RETURN_NONE;
}

#endif
