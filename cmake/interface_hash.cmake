# The hash that //registry:interface_hash makes: two copies of memledger in one process work together
# only where theirs are equal.
set(text "")
foreach(header IN LISTS HEADERS)
  file(READ "${header}" part)
  string(APPEND text "${part}")
endforeach()
string(SHA256 hash "${text}")
string(SUBSTRING "${hash}" 0 12 hash)
file(WRITE "${OUT}" "#define MEMLEDGER_INTERFACE_HASH \"${hash}\"\n")
