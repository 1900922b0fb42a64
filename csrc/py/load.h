/* load.h - what the load_*.c files of solo._C share: checkpoints, files, arenas. */
#ifndef SOLO_PY_LOAD_H
#define SOLO_PY_LOAD_H

#include "py.h"
#include "solo_ckpt.h"

/* Adds the types and functions for checkpoints to the module; 0, or -1 with an exception. */
int py_load_init(PyObject *module);

struct load_file {
    PyObject_HEAD struct solo_file *file;
};
struct load_checkpoint {
    PyObject_HEAD struct solo_ckpt *ckpt;
};

/* Checks the type; NULL with an exception. */
struct load_file *load_file_of(PyObject *object);
struct load_checkpoint *load_checkpoint_of(PyObject *object);

/* New types, or NULL with an exception. */
PyObject *load_file_type(PyObject *module);
PyObject *load_checkpoint_type(PyObject *module);
PyObject *load_arena_type(PyObject *module);
PyObject *load_slice_type(PyObject *module);
PyObject *load_reading_type(PyObject *module);

/* The object of a checkpoint: build(tensors, storage, resolve, call, state). */
PyObject *load_build(PyObject *self, PyObject *arguments);

/* The tables of a checkpoint as lists of `kind`, tuple or a class derived from it. */
PyObject *load_storages(PyObject *self, PyObject *kind);
PyObject *load_tensors(PyObject *self, PyObject *kind);
PyObject *load_names(PyObject *self, PyObject *kind);

/* ---- for the parts of the module ---- */

PyObject *load_text_of(const char *text, size_t size); /* UTF-8, wrong bytes escaped */
/* Takes the item (NULL: an exception is set); gives the list, or NULL. */
PyObject *load_append(PyObject *list, PyObject *item);
PyObject *load_fault_row(const struct solo_ckpt_fault *fault);
PyObject *load_counts(const uint64_t *values, uint32_t count);
/* 1: row-major over exactly its elements: the common case, which needs no strides. */
int load_is_contiguous(const struct solo_ckpt_tensor *row);
PyObject *load_faults(PyObject *self, PyObject *unused);

#endif
