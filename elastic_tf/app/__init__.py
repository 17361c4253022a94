"""What stands around the library: commands, run directories, exports, data and networks."""
