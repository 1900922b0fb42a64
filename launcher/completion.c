/* Completion scripts for bash, zsh and fish, made from the table of flags. */
#include <stdio.h>
#include <string.h>

#include "flags.h"
#include "help.h"
#include "text.h"

static const char commands[] = "master doctor status completion manual errors";

static bool torchruns_alone(int index)
{
    return flag_find(torchrun_table[index].name) == FLAG_COUNT;
}

static void bash(void)
{
    fputs("_solorun() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} flags='",
          stdout);
    for (int id = 0; id < FLAG_COUNT; id++) {
        printf("--%s ", flag_table[id].name);
    }
    for (int i = 0; i < torchrun_count; i++) {
        if (torchruns_alone(i)) {
            printf("--%s ", torchrun_table[i].name);
        }
    }
    printf("'\n"
           "    if [[ $word == -* ]]; then\n"
           "        COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
           "    elif [[ $COMP_CWORD == 1 ]]; then\n"
           "        COMPREPLY=($(compgen -W '%s' -- \"$word\")\n"
           "                   $(compgen -f -X '!*.py' -- \"$word\"))\n"
           "    else\n"
           "        COMPREPLY=($(compgen -f -- \"$word\"))\n"
           "    fi\n"
           "}\n"
           "complete -o filenames -F _solorun solorun\n",
           commands);
}

/* Text with a backslash before each of these letters. */
static char *escaped(const char *text, const char *letters)
{
    char *out = text_alloc(2 * strlen(text) + 1), *to = out;
    for (; *text; text++) {
        if (strchr(letters, *text)) {
            *to++ = '\\';
        }
        *to++ = *text;
    }
    return out;
}

static void zsh_flag(const char *name, const char *value, const char *help)
{
    printf("    \"--%s%s[%s]%s\" \\\n", name, value ? "=" : "", escaped(help, "[]:\"$`\\"),
           value ? text_format(":%s:_files", escaped(value, ":")) : "");
}

static void zsh(void)
{
    puts("#compdef solorun\n_arguments -S \\");
    for (int id = 0; id < FLAG_COUNT; id++) {
        zsh_flag(flag_table[id].name, flag_table[id].value, flag_table[id].help);
    }
    for (int i = 0; i < torchrun_count; i++) {
        if (torchruns_alone(i)) {
            zsh_flag(torchrun_table[i].name, torchrun_table[i].takes_value ? "VALUE" : NULL,
                     "as torchrun's");
        }
    }
    printf("    \"1:script or command:{_alternative 'commands:command:(%s)' "
           "'files:script:_files -g \\\"*.py\\\"'}\" \\\n    \"*:argument:_files\"\n",
           commands);
}

static void fish_flag(const char *name, bool value, const char *help)
{
    printf("complete -c solorun -l %s%s -d '%s'\n", name, value ? " -r" : "", escaped(help, "'\\"));
}

static void fish(void)
{
    printf("complete -c solorun -n __fish_is_first_arg -a '%s'\n", commands);
    for (int id = 0; id < FLAG_COUNT; id++) {
        fish_flag(flag_table[id].name, flag_table[id].value != NULL, flag_table[id].help);
    }
    for (int i = 0; i < torchrun_count; i++) {
        if (torchruns_alone(i)) {
            fish_flag(torchrun_table[i].name, torchrun_table[i].takes_value, "as torchrun's");
        }
    }
}

bool help_completion(const char *shell)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(shell, shells[i].name) == 0) {
            shells[i].print();
            return true;
        }
    }
    return false;
}
