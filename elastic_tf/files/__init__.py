"""Files that appear whole or not at all, and files that anybody may have written."""
