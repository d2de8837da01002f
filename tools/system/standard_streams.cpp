#include "tools/system/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace penstock::tools {

void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0) (void)::open("/dev/null", O_RDONLY);  // it gets the lowest number that is free
  }
}

}  // namespace penstock::tools
