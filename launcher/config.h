/* config.h - the configuration file: `name = value` lines, a small part of TOML. */
#ifndef LAUNCHER_CONFIG_H
#define LAUNCHER_CONFIG_H

#include "settings.h"

/* Offers what --config says, or else ./solo.toml, then $XDG_CONFIG_HOME/solo/config.toml. */
struct finding config_offer(struct settings *settings);

/* Offers the lines of `text`, which came from `path`. Pure. */
struct finding config_parse(const char *path, const char *text, struct settings *settings);

#endif
