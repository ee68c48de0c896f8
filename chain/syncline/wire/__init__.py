"""Bytes <-> values of wire format v1. No I/O, no clock, no torch, no store. FORMAT.md beside this file is normative."""
