/* module.c - the CPython module solo._C: limited API, multi-phase init, no state of its own. */
#include <Python.h>

#include "solo.h"

static PyObject *version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(solo_version());
}

static PyMethodDef methods[] = {
    {"version", version, METH_NOARGS, "The version of libsolo."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "solo._C", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__C(void)
{
    return PyModuleDef_Init(&definition);
}
