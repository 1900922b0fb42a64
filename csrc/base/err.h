/* err.h - error codes of solo.h with a text, and checks that stay on in release builds.
 *
 * Who first decides that something is an error calls err_set once; everyone else forwards
 * the code. The text belongs to the calling thread. */
#ifndef SOLO_BASE_ERR_H
#define SOLO_BASE_ERR_H

#include "solo.h"

#if defined(__GNUC__)
#define ERR_PRINTF(at, first) __attribute__((format(printf, at, first)))
#else
#define ERR_PRINTF(at, first)
#endif

/* Keeps the text for solo_error_text and returns rc. */
int err_set(int rc, const char *format, ...) ERR_PRINTF(2, 3);

/* As err_set with SOLO_ESYS, with errno's words after the text. */
int err_errno(const char *format, ...) ERR_PRINTF(1, 2);

/* This thread's text. Another thread is told by a copy of it: latch_set. */
const char *err_text(void);

/* Prints the broken condition to the log sink and aborts: our own bug, never a peer's or a
 * caller's fault. */
_Noreturn void err_must_failed(const char *condition, const char *file, int line);

#define MUST(condition) ((condition) ? (void)0 : err_must_failed(#condition, __FILE__, __LINE__))

/* Forwards an error to the caller; for functions with nothing to undo. */
#define TRY(expression)                                                                            \
    do {                                                                                           \
        int try_rc = (expression);                                                                 \
        if (try_rc < 0) {                                                                          \
            return try_rc;                                                                         \
        }                                                                                          \
    } while (0)

#endif
