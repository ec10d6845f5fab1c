# Warnings of every target of this project, as errors.
add_library(mlaprefill_warnings INTERFACE)
target_compile_options(mlaprefill_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wconversion -Wshadow -Wempty-body -Werror>)
