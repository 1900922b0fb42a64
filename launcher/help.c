#include "help.h"

#include <stdio.h>
#include <string.h>

#include "flags.h"
#include "text.h"

static const char usage[] =
    "usage: solorun [flags] train.py [the script's own]\n"
    "       solorun master|doctor|status URL|completion SHELL|manual|errors\n"
    "\n"
    "  solorun --device_count 2 train.py                                        torchrun + DDP\n"
    "  solorun --solo --node_rank 0 --master_url tcp://10.0.0.1:29400 train.py  the first node\n"
    "  solorun --solo --node_rank 1 --master_url tcp://10.0.0.1:29400 train.py  any other node,\n"
    "                                                                           at any time\n";

static void print_flag(const struct flag *flag)
{
    char *name =
        text_format("--%s%s%s", flag->name, flag->value ? " " : "", flag->value ? flag->value : "");
    printf("  %-24s %s", name, flag->help);
    if (flag->value && flag->fallback) {
        printf(" [%s]", flag->fallback);
    }
    putchar('\n');
}

void help_print(bool all)
{
    static const char *const groups[GROUP_COUNT] = {"Launch", "Network", "Sync", "Output"};
    fputs(usage, stdout);
    for (int group = 0; group < GROUP_COUNT; group++) {
        printf("\n%s\n", groups[group]);
        for (int id = 0; id < FLAG_COUNT; id++) {
            const struct flag *flag = &flag_table[id];
            if ((int)flag->group == group && (all || flag->traits & FLAG_FIRST)) {
                print_flag(flag);
            }
        }
    }
    if (!all) {
        return;
    }
    puts("\ntorchrun's own flags are passed on:");
    for (int i = 0, column = 0; i < torchrun_count; i++) {
        if (flag_find(torchrun_table[i].name) == FLAG_COUNT) {
            column += printf("%s--%s", column ? " " : "  ", torchrun_table[i].name);
            if (column > 66) {
                putchar('\n');
                column = 0;
            }
        }
    }
    puts("\n\nNames are taken with _ or -. Each flag has a variable SOLO_<NAME> (--solo:\n"
         "SOLO_ENABLE) and a key in ./solo.toml or $XDG_CONFIG_HOME/solo/config.toml.\n"
         "flag > SOLO_* > PET_* > file > scheduler > default; --print_config shows them all.");
}
