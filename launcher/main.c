/* main.c - solorun: checks, starts the master on node 0, then becomes torchrun. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "help.h"
#include "jobdir.h"
#include "launch.h"
#include "master_process.h"
#include "reach.h"
#include "report.h"

static void die_if_failed(struct finding finding)
{
    message_end_if_failed(&finding);
    message_print(&finding);
}

static int print_version(void)
{
    struct python python;
    printf("solorun %s (wire %u)\n", SOLO_VERSION, SOLO_WIRE_VERSION);
    if (python_find(&python).level == LEVEL_OK) {
        (void)python_find_torch(&python);
        printf("torch %s\npython %s (%s)\n", python.torch ? python.torch : "none", python.path,
               python.found);
    } else {
        puts("torch none\npython none");
    }
    return 0;
}

static void note_ignored(const struct launch *launch)
{
    char *names = text_copy("");
    for (enum flag_id id = 0; id < FLAG_COUNT; id++) {
        if (launch->args->value[id] && flag_table[id].traits & FLAG_SYNC) {
            names = text_format("%s --%s", names, flag_table[id].name);
        }
    }
    if (*names) {
        message_note("without --solo these have no meaning:%s (add --solo, or leave them out)",
                     names);
    }
}

static void take_steps(struct launch *launch)
{
    for (const struct step *step = launch_steps; step->name; step++) {
        if (step->solo_only && !launch->solo) {
            continue;
        }
        struct finding finding = step->take(launch);
        die_if_failed(finding);
        if (launch->verbose && finding.level == LEVEL_OK) {
            message_note("%s: %s", step->name, finding.what);
        }
    }
}

/* Node 0's master logs into the job's folder; the others need none before they are let in. */
static void meet_master(struct launch *launch)
{
    struct finding finding;
    if (launch->node_rank == 0) {
        die_if_failed(jobdir_make(launch));
        finding = master_process_start(launch);
    } else {
        finding = reach_master(launch);
    }
    die_if_failed(finding);
    launch->master_seen = true;
    if (launch->node_rank != 0) {
        die_if_failed(jobdir_make(launch));
    }
    if (launch->verbose) {
        message_note("master: %s", finding.what);
    }
}

static int run_script(struct launch *launch)
{
    struct command command;
    take_steps(launch);
    if (!launch->solo) {
        note_ignored(launch);
    }
    if (launch->dry_run) {
        command_build(launch, &command);
        command_print(&command);
        return 0;
    }
    if (launch->solo) {
        meet_master(launch);
    }
    command_build(launch, &command);
    if (launch->solo) {
        die_if_failed(jobdir_describe(launch, &command.argv, &command.set));
    }
    die_if_failed(command_exec(launch, &command));
    return EXIT_FAILURE;
}

static int run_master(struct launch *launch)
{
    launch->node_rank = -1;
    for (const struct step *step = launch_steps; step->name; step++) {
        if (step->masters) {
            die_if_failed(step->take(launch));
        }
    }
    if (launch->settings.of[FLAG_LOG_DIR].value) {
        die_if_failed(jobdir_make(launch));
    }
    return master_process_run(launch);
}

static int run_command(struct launch *launch)
{
    const char *name = launch->args->command;
    const struct list *operands = &launch->args->operands;
    if (strcmp(name, "completion") == 0) {
        const char *shell = operands->count ? operands->items[0] : "";
        if (!help_completion(shell)) {
            die_if_failed(fail(CODE_VALUE, text_format("completion for \"%s\"", shell), NULL,
                               "solorun completion bash, zsh or fish", NULL));
        }
        return 0;
    }
    if (strcmp(name, "manual") == 0) {
        help_manual();
        return 0;
    }
    if (strcmp(name, "errors") == 0) {
        message_document();
        return 0;
    }
    bool json = launch->args->value[FLAG_JSON] != NULL;
    if (strcmp(name, "status") == 0) {
        struct finding finding =
            report_status(launch, operands->count ? operands->items[0] : NULL, json);
        die_if_failed(finding);
        return finding.level == LEVEL_WARN ? message_status(finding.code) : 0;
    }
    return strcmp(name, "doctor") == 0 ? report_doctor(launch, json) : run_master(launch);
}

/* Closed by whoever started us, their numbers would go to the first sockets and files that are opened,
 * and these would be lost when the master takes its log for its output. */
static void hold_standard_streams(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO) {
        close(fd);
    }
}

int main(int argc, char **argv)
{
    struct args args;
    struct launch launch;
    hold_standard_streams();
    message_style("auto", "text");
    die_if_failed(args_parse(argc, argv, &args));
    if (args.value[FLAG_HELP] || args.value[FLAG_HELP_ALL]) {
        help_print(args.value[FLAG_HELP_ALL] != NULL);
        return 0;
    }
    if (args.value[FLAG_VERSION]) {
        return print_version();
    }
    die_if_failed(launch_begin(&args, &launch));
    if (args.value[FLAG_PRINT_CONFIG]) {
        settings_print(&launch.settings);
        return 0;
    }
    for (size_t i = 0; i < launch.settings.warnings.count; i++) {
        struct finding finding =
            warn(CODE_CONTRADICTION, launch.settings.warnings.items[i], NULL, NULL);
        message_print(&finding);
    }
    return args.command ? run_command(&launch) : run_script(&launch);
}
