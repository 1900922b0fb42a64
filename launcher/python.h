/* python.h - which Python runs the ranks, and its torch, without starting either. */
#ifndef LAUNCHER_PYTHON_H
#define LAUNCHER_PYTHON_H

#include "message.h"

struct python {
    const char *path;          /* of the interpreter */
    const char *found;         /* "beside solorun", "VIRTUAL_ENV", "PATH" */
    const char *torch;         /* "2.13.0+cpu", NULL: none */
    const char *adapter;       /* solo/_c10d*.so, NULL: not seen */
    const char *adapter_torch; /* the torch it was built for: "2.13" */
};

struct finding python_find(struct python *out);
struct finding python_find_torch(struct python *python);
/* Whether our binary fits the torch that is there. */
struct finding python_check_fit(struct python *python);

#endif
