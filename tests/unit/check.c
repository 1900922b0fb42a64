#include "check.h"

struct check_test *check_tests;

static int wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            return 1;
        }
    }
    return argc == 1;
}

int main(int argc, char **argv)
{
    int count = 0;
    for (struct check_test *test = check_tests; test; test = test->next) {
        if (argc == 2 && strcmp(argv[1], "--list") == 0) {
            puts(test->name);
        } else if (wanted(test->name, argc, argv)) {
            fprintf(stderr, "%s\n", test->name);
            test->run();
            count++;
        }
    }
    return argc == 2 && strcmp(argv[1], "--list") == 0 ? 0 : count == 0;
}
