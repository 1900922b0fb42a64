/* message.h - what solorun says: findings with a stable code, notes, warnings; on stderr. */
#ifndef LAUNCHER_MESSAGE_H
#define LAUNCHER_MESSAGE_H

#include <stdbool.h>

#include "text.h"

/* The stable code is the value: SOLO-E012. Never reuse one; docs/errors.md lists them. */
enum code {
    CODE_NONE = 0,
    CODE_FLAG = 1,
    CODE_VALUE = 2,
    CODE_NO_SCRIPT = 3,
    CODE_SCRIPT = 4,
    CODE_CONFIG = 5,
    CODE_TORCHRUN_FLAG = 6,
    CODE_CONTRADICTION = 7,
    CODE_MASTER_URL = 10,
    CODE_NODE_RANK = 11,
    CODE_UNREACHABLE = 12,
    CODE_RANK_HELD = 13,
    CODE_SECOND_MASTER = 14,
    CODE_PORT = 15,
    CODE_NOT_SOLO = 16,
    CODE_OTHER_JOB = 17,
    CODE_WIRE = 18,
    CODE_VERSIONS = 19,
    CODE_WORKER_URL = 20,
    CODE_LOOPBACK = 21,
    CODE_MISSING = 22,
    CODE_SETTINGS = 23,
    CODE_CLOCK = 24,
    CODE_DEVICES = 30,
    CODE_INTERVAL = 31,
    CODE_MEMORY = 32,
    CODE_TOKEN_FILE = 40,
    CODE_TOKEN_NONE = 41,
    CODE_TOKEN_WRONG = 42,
    CODE_LOG_DIR = 50,
    CODE_STATE_DIR = 51,
    CODE_SHM = 52,
    CODE_FILES = 53,
    CODE_PYTHON = 60,
    CODE_TORCH = 61,
    CODE_TORCH_FIT = 62,
    CODE_EXEC = 63,
    CODE_MASTER_START = 64,
    CODE_SLURM = 65,
    CODE_RANK_FAILED = 80,
    CODE_SIGNALLED = 81,
    CODE_OVER = 82,
    CODE_NO_MEMORY = 99,
};

enum level { LEVEL_OK, LEVEL_WARN, LEVEL_FAIL };

/* What a check found. `what` alone when it is fine; why, fix and next may be NULL. */
struct finding {
    enum level level;
    enum code code;
    const char *what, *why, *fix, *next;
};

struct finding fine(const char *format, ...) TEXT_PRINTF(1, 2);
struct finding warn(enum code code, const char *what, const char *why, const char *fix);
struct finding fail(enum code code, const char *what, const char *why, const char *fix,
                    const char *next);

/* How to print; `color` is "auto", "always" or "never", `format` "text" or "json". */
void message_style(const char *color, const char *format);
void message_node(int node_rank);

void message_print(const struct finding *finding); /* nothing if it is fine */
void message_note(const char *format, ...) TEXT_PRINTF(1, 2);
void message_more(const char *format, ...) TEXT_PRINTF(1, 2); /* an indented line after a note */

int message_status(enum code code); /* the exit status of sysexits that goes with a code */

/* Prints a failure and ends the process with its status; returns if there was none. */
void message_end_if_failed(const struct finding *finding);

/* docs/errors.md, from the table, on stdout. */
void message_document(void);

#endif
