#include "runtime/engine/penstock_version.h"

const char* penstock_version(void) { return PENSTOCK_VERSION; }
