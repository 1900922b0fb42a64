#include "os/journal.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static char folder[128], path[160];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "%s/solo-journal-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/events.jsonl", folder);
}

static const char *content(const char *suffix)
{
    static char text[256];
    char name[192];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    FILE *file = fopen(name, "r");
    if (!file) {
        return "none";
    }
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

static void remove_all(void)
{
    static const char *const suffixes[] = {"", ".1", ".2", ".3", ".4"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        char name[192];
        snprintf(name, sizeof name, "%s%s", path, suffixes[i]);
        unlink(name);
    }
    CHECK_EQ(rmdir(folder), 0);
}

TEST(a_journal_never_grows_beyond_its_limit_and_keeps_the_latest_lines)
{
    make_folder();
    struct journal journal;
    CHECK_EQ(journal_open(&journal, path, 8), 0);
    for (int i = 0; i < 12; i++) {
        char line[16];
        snprintf(line, sizeof line, "%03d", i);
        CHECK_EQ(journal_add(&journal, line), 0);
    }
    journal_close(&journal);
    CHECK_STR(content(""), "010\n011\n");
    CHECK_STR(content(".1"), "008\n009\n");
    CHECK_STR(content(".3"), "004\n005\n");
    CHECK_STR(content(".4"), "none");
    remove_all();
}

TEST(a_journal_goes_on_with_what_an_earlier_process_wrote)
{
    make_folder();
    struct journal journal;
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(journal_open(&journal, path, 8), 0);
        CHECK_EQ(journal_add(&journal, "abc"), 0);
        journal_close(&journal);
    }
    CHECK_STR(content(""), "abc\n");
    CHECK_STR(content(".1"), "abc\nabc\n");
    remove_all();
}

TEST(a_line_longer_than_the_limit_has_a_file_of_its_own)
{
    make_folder();
    struct journal journal;
    CHECK_EQ(journal_open(&journal, path, 4), 0);
    CHECK_EQ(journal_add(&journal, "longer than that"), 0);
    CHECK_EQ(journal_add(&journal, "abc"), 0);
    journal_close(&journal);
    CHECK_STR(content(""), "abc\n");
    CHECK_STR(content(".1"), "longer than that\n");
    remove_all();
}

TEST(a_line_that_an_earlier_process_did_not_end_is_no_part_of_the_next)
{
    make_folder();
    FILE *file = fopen(path, "w");
    CHECK(file && fputs("abc\n{\"torn", file) >= 0);
    fclose(file);
    struct journal journal;
    CHECK_EQ(journal_open(&journal, path, 64), 0);
    CHECK_EQ(journal_add(&journal, "def"), 0);
    journal_close(&journal);
    CHECK_STR(content(""), "abc\n{\"torn\ndef\n");
    remove_all();
}

/* A limit of the file's size stands for a full disk: it also writes what there is room for. */
TEST(a_line_that_has_no_room_is_taken_back_as_a_whole)
{
    make_folder();
    struct journal journal;
    struct rlimit before, full;
    signal(SIGXFSZ, SIG_IGN);
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    full = (struct rlimit){.rlim_cur = 6, .rlim_max = before.rlim_max};
    CHECK_EQ(journal_open(&journal, path, 64), 0);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
    CHECK_EQ(journal_add(&journal, "abc"), 0);
    CHECK_EQ(journal_add(&journal, "def"), SOLO_ESYS);
    CHECK(strstr(solo_error_text(), "2 of 4 bytes had room"));
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    CHECK_EQ(journal_add(&journal, "ghi"), 0);
    journal_close(&journal);
    CHECK_STR(content(""), "abc\nghi\n");
    remove_all();
}

/* Another file is at the first one's new place: the limit is kept, the lines are not. */
TEST(a_file_that_cannot_be_moved_away_is_emptied)
{
    make_folder();
    char other[192];
    snprintf(other, sizeof other, "%s.1", path);
    CHECK_EQ(mkdir(other, 0700), 0);
    char kept[192];
    snprintf(kept, sizeof kept, "%s.2", path);
    CHECK_EQ(mkdir(kept, 0700), 0);
    char inside[208];
    snprintf(inside, sizeof inside, "%s/x", other);
    CHECK_EQ(mkdir(inside, 0700), 0);
    snprintf(inside, sizeof inside, "%s/x", kept);
    CHECK_EQ(mkdir(inside, 0700), 0);
    char third[192];
    snprintf(third, sizeof third, "%s.3", path);
    FILE *file = fopen(third, "w");
    CHECK(file);
    fclose(file);
    struct journal journal;
    CHECK_EQ(journal_open(&journal, path, 8), 0);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(journal_add(&journal, "abc"), 0);
    }
    journal_close(&journal);
    CHECK_STR(content(""), "abc\n");
    char command[200];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK_EQ(system(command), 0);
}
