# MLAPREFILL_COMMIT: the commit the sources come from, "-dirty" behind it when they differ. Configured anew after
# every commit; "unknown" outside a git checkout.
set(MLAPREFILL_COMMIT unknown)
find_program(MLAPREFILL_GIT git)
mark_as_advanced(MLAPREFILL_GIT)
if(MLAPREFILL_GIT)
  execute_process(COMMAND ${MLAPREFILL_GIT} describe --always --dirty --abbrev=12 --exclude=*
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE failed ERROR_QUIET)
  execute_process(COMMAND ${MLAPREFILL_GIT} rev-parse --git-path logs/HEAD
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE head_log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    set(MLAPREFILL_COMMIT ${described})
    cmake_path(ABSOLUTE_PATH head_log BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    if(EXISTS ${head_log})
      set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${head_log})
    endif()
  endif()
endif()
