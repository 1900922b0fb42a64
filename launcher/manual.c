/* solorun(1), made from the same table as --help. */
#include <stdio.h>
#include <string.h>

#include "flags.h"
#include "help.h"
#include "solo.h"

/* troff reads a plain '-' as a hyphen, a '\' as an escape, and a leading '.' or ''' as a request. */
static void say(const char *text)
{
    if (*text == '.' || *text == '\'') {
        fputs("\\&", stdout);
    }
    for (; *text; text++) {
        if (*text == '-') {
            fputs("\\-", stdout);
        } else if (*text == '\\') {
            fputs("\\e", stdout);
        } else {
            putchar(*text);
        }
    }
}

static void flag_entry(const struct flag *flag)
{
    fputs(".TP\n\\fB\\-\\-", stdout);
    say(flag->name);
    fputs("\\fR", stdout);
    if (flag->value) {
        printf(" \\fI%s\\fR", flag->value);
    }
    putchar('\n');
    say(flag->help);
    if (flag->value && flag->fallback) {
        fputs(" [", stdout);
        say(flag->fallback);
        putchar(']');
    }
    putchar('\n');
}

void help_manual(void)
{
    static const char *const groups[GROUP_COUNT] = {"LAUNCH", "NETWORK", "SYNC", "OUTPUT"};
    printf(".TH SOLORUN 1 \"\" \"solo %s\" \"User Commands\"\n", SOLO_VERSION);
    puts(
        ".SH NAME\nsolorun \\- start a training script on one node, alone or with others\n"
        ".SH SYNOPSIS\n.B solorun\n[\\fIflags\\fR] \\fIscript.py\\fR [\\fIits own\\fR]\n.br\n"
        ".B solorun\nmaster|doctor|status \\fIURL\\fR|completion \\fISHELL\\fR|manual|errors\n"
        ".SH DESCRIPTION\n"
        "Checks everything that can be checked before Python starts, then becomes torchrun. With\n"
        "\\fB\\-\\-solo\\fR an unmodified DistributedDataParallel script trains across nodes that\n"
        "merge their models every so many steps; node 0 also starts the master. Names are taken\n"
        "with _ or \\-. torchrun's own flags are passed on. What stands after the script is the\n"
        "script's.");
    for (int group = 0; group < GROUP_COUNT; group++) {
        printf(".SH %s\n", groups[group]);
        for (int id = 0; id < FLAG_COUNT; id++) {
            if ((int)flag_table[id].group == group) {
                flag_entry(&flag_table[id]);
            }
        }
    }
    puts(".SH ENVIRONMENT\nEach flag has a variable SOLO_<NAME> (\\-\\-solo: SOLO_ENABLE) and a\n"
         "key in ./solo.toml or $XDG_CONFIG_HOME/solo/config.toml. A flag comes before SOLO_*,\n"
         "that before PET_*, the file, the scheduler and the default; \\-\\-print_config shows\n"
         "every value with its source. SOLO_TOKEN holds the secret itself. SOLO_DISABLE=1 turns\n"
         "the sync off.\n"
         ".SH EXIT STATUS\nThe script's own; 128 + N if signal N ended it. 64 usage, 65 bad data,\n"
         "69 no master, 71 system resources, 73 directories, 75 nodes missing, 77 token, 78\n"
         "refused. \\fBsolorun errors\\fR prints every code with what to do.\n"
         ".SH SEE ALSO\n.BR torchrun (1)");
}
