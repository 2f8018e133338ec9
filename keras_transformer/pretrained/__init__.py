"""Models of other toolkits as models and runs of this one."""
