/* py.h - what the files of the CPython module solo._C share.
 *
 * Limited API of CPython 3.11, heap types, multi-phase init. Threads: the GIL is held unless
 * a function says otherwise; whatever may block in libsolo is called without it. */
#ifndef SOLO_PY_H
#define SOLO_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "solo.h"

/* A text of libsolo's as a str: one that another node gave, or that was cut to fit, need not be
 * whole UTF-8. A new reference, or NULL with an exception. */
PyObject *py_text(const char *text);

/* Raises solo.errors' class for rc with `text`; always returns NULL. */
PyObject *py_raise_text(int rc, const char *text);

/* As py_raise_text with this thread's latest text: call before anything else of libsolo. */
PyObject *py_raise(int rc);

/* Tensors as libsolo wants them, from a list of (name, count, dtype, role). */
struct py_layout {
    struct solo_tensor *tensors;
    Py_ssize_t count;
};

/* Borrows the names from `list`: keep it alive as long as the layout. 0, or -1 with an
 * exception. Gives layout: py_layout_free. */
int py_layout_parse(PyObject *list, struct py_layout *layout);
void py_layout_free(struct py_layout *layout);

/* Addresses from a list of ints, exactly `count` of them; NULL with an exception. Gives:
 * PyMem_Free. */
void **py_addresses(PyObject *list, Py_ssize_t count);

/* A config from keyword arguments; borrows their texts. 0, or -1 with an exception. */
int py_config_parse(PyObject *arguments, PyObject *keywords, struct solo_config *config);

/* The types; each gives a new reference, or NULL with an exception. */
PyObject *py_engine_type(PyObject *module);
PyObject *py_master_type(PyObject *module);

/* Asks a master: status(url, job_id, token, timeout_ms) -> dict. */
PyObject *py_status(PyObject *module, PyObject *arguments, PyObject *keywords);

/* Log lines wait in a ring until Python fetches them: the sink never needs the GIL, which
 * the thread that logs may be unable to get while the one that holds it waits to log. */
PyObject *py_log_start(PyObject *module, PyObject *least);
PyObject *py_log_lines(PyObject *module, PyObject *unused);

#endif
