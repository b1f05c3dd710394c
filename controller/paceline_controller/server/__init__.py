"""The controllers' HTTP endpoint."""
