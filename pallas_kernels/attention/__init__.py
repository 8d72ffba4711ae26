"""Attention over trees and packed rows."""
