#include <penstock/penstock_version.h>
#include <stdio.h>

int main(void) {
  puts(penstock_version());
  return 0;
}
