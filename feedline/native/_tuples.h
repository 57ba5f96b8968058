/* Tuples of results that are found one by one. */

#ifndef FEEDLINE_TUPLES_H
#define FEEDLINE_TUPLES_H

#include <Python.h>

/* The tuple of a list, which it takes; NULL stays NULL. Results are gathered in a list, because a tuple is not to be
 * filled while other threads run: one that gc.get_objects() gave to somebody refuses its next item. */
static PyObject *as_tuple(PyObject *list) {
    PyObject *tuple = list == NULL ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    return tuple;
}

#endif
