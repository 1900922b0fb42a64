#include <stdio.h>

#include "solo.h"

int main(void)
{
    printf("solorun %s\n", solo_version());
    return 0;
}
