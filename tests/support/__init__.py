"""What tests of several areas share: processes, clusters, doubles, and waiting."""
