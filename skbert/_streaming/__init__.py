"""What the command line does with files of many rows, part by part."""
