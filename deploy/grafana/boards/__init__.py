"""The dashboards as code: a file each, of panels and variables that they share."""
