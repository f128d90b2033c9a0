# weft::fmt, for Weft's own sources only: no public header shows it.
#
# libtorch 2.x brings fmt's headers in its own include folder, and whoever includes libtorch gets
# those: a system's libfmt of another version would not fit them. They are used alone then.

add_library(weft::fmt INTERFACE IMPORTED)
if(EXISTS ${WEFT_TORCH_INCLUDE_DIR}/fmt/format.h
   AND NOT WEFT_TORCH_INCLUDE_DIR IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
  set(WEFT_FMT_INCLUDE_DIR ${WEFT_TORCH_INCLUDE_DIR})
else()
  find_package(fmt QUIET)
endif()

if(TARGET fmt::fmt)
  target_link_libraries(weft::fmt INTERFACE fmt::fmt)
else()
  find_path(WEFT_FMT_INCLUDE_DIR fmt/format.h)
  if(NOT WEFT_FMT_INCLUDE_DIR)
    message(FATAL_ERROR "Weft needs fmt: install libfmt-dev, or point CMAKE_PREFIX_PATH at it")
  endif()
  target_include_directories(weft::fmt SYSTEM INTERFACE ${WEFT_FMT_INCLUDE_DIR})
  target_compile_definitions(weft::fmt INTERFACE FMT_HEADER_ONLY)
endif()
