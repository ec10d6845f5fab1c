# Install rules and the package that find_package(mlaprefill) finds.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mlaprefill)
install(TARGETS mlaprefill mlaprefill_c EXPORT mlaprefillTargets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/mlaprefill TYPE INCLUDE)
install(EXPORT mlaprefillTargets NAMESPACE mlaprefill:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/mlaprefillConfig.cmake.in
  ${PROJECT_BINARY_DIR}/mlaprefillConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mlaprefillConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/mlaprefillConfig.cmake ${PROJECT_BINARY_DIR}/mlaprefillConfigVersion.cmake
  DESTINATION ${package_dir})
