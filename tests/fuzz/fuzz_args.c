/* Any words and any file: taken apart or refused with a message; what is the script's stays.
 *
 * The first line of the input is the command line, blank-separated; the rest is a file. The
 * launcher is a program, not a library: its pure parts are compiled in here. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../launcher/args.c"
#include "../../launcher/config.c"
#include "../../launcher/device.c"
#include "../../launcher/flags.c"
#include "../../launcher/number.c"
#define variable scheduler_variable
#include "../../launcher/scheduler.c"
#undef variable
#include "../../launcher/message.c"
#include "../../launcher/settings.c"
#include "../../launcher/text.c"

#define MUST_HOLD(condition) ((condition) ? (void)0 : abort())

enum { WORDS_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check_words(char *line)
{
    char *argv[WORDS_MAX + 1] = {"solorun"};
    int argc = 1;
    for (char *word = strtok(line, " "); word && argc < WORDS_MAX; word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    struct args args;
    struct finding finding = args_parse(argc, argv, &args);
    MUST_HOLD(finding.what && *finding.what);
    if (finding.level == LEVEL_FAIL) {
        MUST_HOLD(message_status(finding.code) == EX_USAGE);
        return;
    }
    size_t own = args.script_args.count; /* the end of the line, word for word */
    MUST_HOLD(own < (size_t)argc);
    for (size_t i = 0; args.script && i < own; i++) {
        MUST_HOLD(strcmp(args.script_args.items[i], argv[(size_t)argc - own + i]) == 0);
    }
}

static void check_values(const char *text)
{
    uint64_t count;
    uint32_t ms;
    bool on;
    const char *why = NULL;
    (void)number_bytes(text, &count);
    (void)number_bool(text, &on);
    MUST_HOLD(!number_ms(text, &ms) || ms > 0);
    MUST_HOLD(number_schedule(text, &why) || why);
    (void)scheduler_first_node(text);
    struct device_request request = {
        .count = text, .count_explicit = true, .gpus = text, .visible = text, .core_count = 2};
    struct device_choice choice;
    struct finding finding = device_choose(&request, &choice);
    MUST_HOLD(finding.level == LEVEL_FAIL || choice.count > 0);
    MUST_HOLD(text_distance(text, "sync_interval") <= 40);
    MUST_HOLD(strlen(text_json(text)) >= 2 && *text_shell(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size > 4096) {
        return 0;
    }
    char *text = text_alloc(size + 1);
    memcpy(text, bytes, size);
    text[size] = 0;
    char *line = text_copy_count(text, strcspn(text, "\n"));
    struct settings settings = {0};
    struct finding finding = config_parse("solo.toml", text + strlen(line), &settings);
    MUST_HOLD(finding.level == LEVEL_OK || finding.code == CODE_CONFIG);
    check_values(line);
    check_words(line);
    text_free_all();
    return 0;
}
