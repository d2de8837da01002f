# One header, compiled into store_hash.cpp.
find_path(PENSTOCK_XXHASH_INCLUDE xxhash.h REQUIRED)
target_include_directories(penstock_tiering SYSTEM PRIVATE ${PENSTOCK_XXHASH_INCLUDE})
